"""Token ids to text, one token at a time, without ever showing half a character.

A byte-level token need not end where a character ends: 🔥 is four bytes, F0 9F 94 A5, and may be two or more tokens.
Decoding the tokens one by one would give U+FFFD for each piece, and decoding the whole output at every step costs
quadratic time. So a short window is decoded twice, with and without what is new:

    ids      … 17 52 | 9 301          prefix_offset: where the window starts
    text       "a fi"  "re"           read_offset:   up to here the text has been given out
             text(prefix..end) minus text(prefix..read) is what the new tokens added

If that ends in U+FFFD the character is not complete, and nothing is given out until it is. The window starts a few
tokens back because a token's text can depend on the one before it (SentencePiece drops the first space of a text).

A model may also say bytes that are no character at all, one after the other. They would be waited for to the end, in a
window that grows. But a character has at most four bytes: behind four tokens only the last U+FFFD can be the beginning
of one, so the others are given out as they are and the window starts anew.

vLLM: v1/engine/detokenizer.py, tokenizers/detokenizer_utils.py
"""

from __future__ import annotations

from typing import Protocol

REPLACEMENT = "\ufffd"
# How many tokens at the end of the prompt the first window holds.
CONTEXT_TOKENS = 5
# So many tokens may wait for the end of a character: it has four bytes, and a token at least one.
LONGEST_CHARACTER = 4


class SupportsDecode(Protocol):
    """The one thing that is asked of a tokenizer here; any Hugging Face one has it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


class IncrementalDetokenizer:
    """One sequence's output; `add` returns what a token adds to its text."""

    def __init__(self, tokenizer: SupportsDecode, prompt_token_ids: list[int], *, skip_special_tokens: bool) -> None:
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        self.ids = prompt_token_ids[-CONTEXT_TOKENS:]
        self.prefix_offset = 0
        self.read_offset = len(self.ids)
        self.num_held = 0  # characters of the text up to read_offset that have not been given out: one U+FFFD, or none

    def add(self, token_id: int) -> str:
        """The text that became complete with this token; often a word, sometimes nothing."""
        self.ids.append(token_id)
        return self._advance(final=False)

    def finish(self) -> str:
        """What is left when no more tokens come: an incomplete character shows as U+FFFD."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        whole = self._decode(self.ids[self.prefix_offset :])
        num_known = max(0, len(known) - self.num_held)
        incomplete = whole.endswith(REPLACEMENT) and not final
        if incomplete and len(self.ids) - self.read_offset > LONGEST_CHARACTER:
            return self._give_up(whole[num_known:-1])
        if incomplete or len(whole) <= num_known:
            return ""
        self.prefix_offset, self.read_offset, self.num_held = self.read_offset, len(self.ids), 0
        return whole[num_known:]

    def _give_up(self, added: str) -> str:
        """Give out what waited, except for the last U+FFFD. The next window holds the tokens that it may be made of."""
        self.prefix_offset, self.read_offset = len(self.ids) - LONGEST_CHARACTER, len(self.ids)
        self.num_held = 1
        return added

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)
