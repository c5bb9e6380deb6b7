"""Byte pair encoding on five words: count neighbours, glue the commonest pair, repeat; then encode words never seen.

At the end the same merges go to the `tokenizers` library, and the embedded model's own tokenizer cuts a sentence.

Run it: python examples/m1_bpe_by_hand.py
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import _tree  # noqa: F401 - folovllm is this tree's
from tokenizers import Tokenizer, models

from folovllm import ModelConfig
from folovllm.model_loader import load_tokenizer

Pair = tuple[str, str]

CORPUS = {"cache": 4, "cached": 2, "ache": 1, "batch": 3, "batched": 2}  # word: how often it occurs


def glue(pieces: list[str], pair: Pair) -> list[str]:
    """The same word with every neighbouring `pair` made one piece, from left to right."""
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def learn(corpus: dict[str, int], num_merges: int) -> list[Pair]:
    """The merges in the order in which they are found."""
    words = {word: list(word) for word in corpus}
    merges: list[Pair] = []
    for number in range(1, num_merges + 1):
        counts: Counter[Pair] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                counts[pair] += corpus[word]
        (best, most), (_, next_most) = counts.most_common(2)
        words = {word: glue(pieces, best) for word, pieces in words.items()}
        merges.append(best)
        cut = "  ".join("·".join(pieces) for pieces in words.values())
        print(f"{number}. {best[0]} + {best[1]:<4} {most:>2} times, the next pair {next_most}:  {cut}")
    return merges


def encode(word: str, merges: list[Pair]) -> list[str]:
    """Apply the merges in the order in which they were learnt, not the longest piece first."""
    pieces = list(word)
    for pair in merges:
        pieces = glue(pieces, pair)
    return pieces


def main() -> None:
    merges = learn(CORPUS, num_merges=4)
    alphabet = sorted(set("".join(CORPUS)) | set("teachers"))
    ids = {piece: i for i, piece in enumerate([*alphabet, *(a + b for a, b in merges)])}
    library = Tokenizer(models.BPE(vocab=ids, merges=merges))
    print()
    for word in ("caches", "teacher"):
        pieces = encode(word, merges)
        agrees = "the library agrees" if library.encode(word).tokens == pieces else "the library differs"
        print(f"{word:<8} {'·'.join(pieces):<12} ids {[ids[piece] for piece in pieces]}, {agrees}")

    tokenizer = load_tokenizer(ModelConfig("embedded"))
    print()
    for text in ("The KV cache grows.", "缓存在增长。"):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        print(f"{len(text.encode()):>2} bytes, {len(token_ids)} tokens: {token_ids}")
        print("  ", [tokenizer.decode([token_id]) for token_id in token_ids])


if __name__ == "__main__":
    main()
