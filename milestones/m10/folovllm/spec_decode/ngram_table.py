"""A table of n-grams: what followed the last tokens most often in a corpus.

    the corpus         the cat sat on the mat . the cat sat on the sofa . the cat sat on the mat
    3 tokens before    sat on the ─▶ mat (2 of 3)
    2                      on the ─▶ mat (2 of 3)      1 would say too little: after "the" came cat, mat, cat, sofa …

The longest context that is in the table decides, and its guess is the next context's last token. The file is a .npz. It
has for each length n two arrays of one size: contexts_n, int64 and rising, and next_n, int32. A context is written as
one number, in the base of the vocabulary:

    contexts_2[i] = first * vocab_size + second

A context that occurred once is left out, since half a corpus is such contexts, and they say little.

vLLM: none, its n-grams are those of the request (v1/spec_decode/ngram_proposer.py)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from folovllm.request import Sequence
from folovllm.worker.proposer import Proposer

LENGTHS = (3, 2)
"""The longest first."""


class NgramTable:
    """following[n]: context of n tokens as a number -> the token after it."""

    def __init__(self, vocab_size: int, following: dict[int, dict[int, int]]) -> None:
        self.vocab_size, self.following = vocab_size, following

    @classmethod
    def of(cls, texts: Iterable[list[int]], vocab_size: int) -> NgramTable:
        """That of a corpus, whose texts are token ids below `vocab_size`. A context never reaches over the end of a
        text. Of tokens that followed equally often, the smallest id is taken.

        Raises:
            ValueError: contexts of a vocabulary of this size have no room in 63 bits.
        """
        if vocab_size ** max(LENGTHS) >= 2**63:
            raise ValueError(f"vocab_size must be below {2 ** (63 // max(LENGTHS))}, got {vocab_size}")
        corpus = [np.array(text, np.int64) for text in texts]
        following = {}
        for length in LENGTHS:
            codes = [_codes(text, length, vocab_size) for text in corpus if len(text) > length]
            nexts = [text[length:] for text in corpus if len(text) > length]
            following[length] = _likeliest(np.concatenate(codes), np.concatenate(nexts)) if codes else {}
        return cls(vocab_size, following)

    def save(self, path: Path) -> None:
        arrays = {"vocab_size": np.array(self.vocab_size)}
        for length, found in self.following.items():
            arrays[f"contexts_{length}"] = np.array(list(found), np.int64)
            arrays[f"next_{length}"] = np.array(list(found.values()), np.int32)
        with path.open("wb") as file:  # given a name, numpy would change it
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | None, vocab_size: int) -> NgramTable:
        """The table in a file of save(), for a model with this vocabulary.

        Raises:
            ValueError: no file is named, or its table is one of another vocabulary.
        """
        if path is None:
            raise ValueError("speculative_config['model'] must name a table's file with method 'ngram_table', got None")
        with np.load(path) as arrays:
            if (found := int(arrays["vocab_size"])) != vocab_size:
                raise ValueError(
                    f"speculative_config['model'] must be a table of the model's {vocab_size:,} tokens, got {path!r}, "
                    f"which is one of {found:,}"
                )
            pairs = {length: (arrays[f"contexts_{length}"], arrays[f"next_{length}"]) for length in LENGTHS}
        following = {
            length: dict(zip(contexts.tolist(), nexts.tolist(), strict=True))
            for length, (contexts, nexts) in pairs.items()
        }
        return cls(vocab_size, following)

    def continuation(self, tail: list[int], count: int) -> list[int]:
        """At most `count` tokens after `tail`, a text's last tokens: fewer where a context is not in the table."""
        tokens = tail[-max(LENGTHS) :]
        for _ in range(count):
            token = self._after(tokens)
            if token is None:
                break
            tokens.append(token)
        return tokens[min(len(tail), max(LENGTHS)) :]

    def _after(self, tokens: list[int]) -> int | None:
        for length in LENGTHS:
            if len(tokens) >= length:
                code = 0
                for token in tokens[-length:]:
                    code = code * self.vocab_size + token
                if (found := self.following[length].get(code)) is not None:
                    return found
        return None


class NgramTableProposer(Proposer):
    """Keeps nothing of a sequence: its last tokens are all that it reads."""

    def __init__(self, table: NgramTable) -> None:
        self.table = table

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [self.table.continuation(_tail(seq), count) for seq, count in zip(seqs, counts, strict=True)]


def _tail(seq: Sequence) -> list[int]:
    """The last tokens, without a copy of all of them."""
    longest, output = max(LENGTHS), seq.data.output_token_ids
    return output[-longest:] if len(output) >= longest else (seq.data.prompt_token_ids[-longest:] + output)[-longest:]


def _codes(text: np.ndarray, length: int, vocab_size: int) -> np.ndarray:
    """The contexts of `length` tokens that have a token after them, as numbers."""
    codes = np.zeros(len(text) - length, np.int64)
    for offset in range(length):
        codes = codes * vocab_size + text[offset : offset + len(codes)]
    return codes


def _likeliest(codes: np.ndarray, nexts: np.ndarray) -> dict[int, int]:
    """For each context that occurs more than once, in rising order, the token that follows it most often."""
    order = np.lexsort((nexts, codes))
    codes, nexts = codes[order], nexts[order]
    new_pair = np.append(True, (codes[1:] != codes[:-1]) | (nexts[1:] != nexts[:-1]))
    starts = np.flatnonzero(new_pair)
    counts = np.diff(np.append(starts, len(codes)))
    pairs, after = codes[starts], nexts[starts]
    best = np.lexsort((after, -counts, pairs))  # of each context, its commonest token first
    first = np.append(True, pairs[best][1:] != pairs[best][:-1])
    totals = np.add.reduceat(counts[best], np.flatnonzero(first))
    chosen = best[first][totals > 1]
    return dict(zip(pairs[chosen].tolist(), after[chosen].tolist(), strict=True))
