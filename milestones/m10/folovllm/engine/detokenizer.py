"""Token ids to text, one token at a time, without ever showing half a character.

A byte-level token need not end where a character ends: 🔥 is four bytes, F0 9F 94 A5, and may be two or more tokens.
Decoding the tokens one by one would give U+FFFD for each piece, and decoding the whole output at every step costs
quadratic time. So a short window is decoded twice, with and without what is new:

    ids      … 17 52 | 9 301          prefix_offset: where the window starts
    text       "a fi"  "re"           read_offset:   up to here the text has been given out
             text(prefix..end) minus text(prefix..read) is what the new tokens added

If that ends in U+FFFD the character is not complete, and nothing is given out until it is. The window starts a few
tokens back because a token's text can depend on the one before it (SentencePiece drops the first space of a text).

A model may also generate bytes that form no character: each is a U+FFFD for good. Only a U+FFFD at the end of the text
can still become a character. It is held back, which `num_held` counts (0 or 1), and all before it is given out.

A tokenizer with byte fallback (Llama 2, Mistral, Gemma) spells a rare character in <0xE4> <0xB8> <0xAD> and reads
a run of them as a whole: 中, or U+FFFD for each of its bytes if one behind it is wrong. So a run waits for a token that
is no byte; `finish` decodes the run as it is.

vLLM: v1/engine/detokenizer.py, tokenizers/detokenizer_utils.py
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

REPLACEMENT = "\ufffd"
# How many tokens at the end of the prompt the first window holds: more than a character has bytes.
CONTEXT_TOKENS = 5


class SupportsDecode(Protocol):
    """The one thing that is asked of a tokenizer here; any Hugging Face one has it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...

    def __hash__(self) -> int: ...


@lru_cache(maxsize=8)
def fallback_bytes(tokenizer: SupportsDecode) -> dict[int, int]:
    """{token id: byte} of <0x00> to <0xFF>; empty without them, where each such name is the unknown token."""
    find = getattr(tokenizer, "token_to_id", None) or getattr(tokenizer, "convert_tokens_to_ids", None)
    ids = {find(f"<0x{byte:02X}>"): byte for byte in range(256)} if find else {}
    return ids if len(ids) > 1 else {}


class IncrementalDetokenizer:
    """One sequence's output; `add` returns what a token adds to its text."""

    def __init__(self, tokenizer: SupportsDecode, prompt_token_ids: list[int], *, skip_special_tokens: bool) -> None:
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        self.bytes, self.in_run = fallback_bytes(tokenizer), False  # type: ignore[arg-type]
        self.ids = prompt_token_ids[-CONTEXT_TOKENS:]
        while self.ids and 0x80 <= self.bytes.get(self.ids[0], 0) < 0xC0:
            del self.ids[0]  # the middle of a character
        self.prefix_offset = 0
        self.read_offset = len(self.ids)
        self.num_held = 0  # characters of the text up to read_offset that have not been given out: one U+FFFD, or none

    def add(self, token_id: int) -> str:
        """The text that became complete with this token; often a word, sometimes nothing."""
        self.ids.append(token_id)
        if self.bytes:  # a token without text, such as a hidden one, does not end a run
            self.in_run = token_id in self.bytes or (self.in_run and not self._decode([token_id]))
        return "" if self.in_run else self._advance(final=False)

    def finish(self) -> str:
        """What comes if no more tokens do: an incomplete character shows as U+FFFD. More may come all the same."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        whole = self._decode(self.ids[self.prefix_offset :])
        known = known[: len(known) - self.num_held]
        complete = whole if final else whole.removesuffix(REPLACEMENT)
        while not complete.startswith(known):
            known = known[:-1]  # the prompt ended in half a character
        added = complete[len(known) :]
        if added and not final:
            self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
            self.num_held = len(whole) - len(complete)
        return added

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)
