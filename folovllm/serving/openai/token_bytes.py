"""The bytes of each token, from the vocabulary: decoded alone, half a character is U+FFFD, and a first space is lost.

    "ðŁ" in a byte-level vocabulary   F0 9F         a character for each byte
    "<0xF0>" with byte fallback       F0            its name says it
    "▁the" of SentencePiece           " the"        the mark is a space

The bytes of several tokens join to a text's, as OpenAI has it.

vLLM: entrypoints/openai/chat_completion/serving.py, which encodes the token's text
"""

from __future__ import annotations

from typing import Any

from folovllm.engine.detokenizer import fallback_bytes
from folovllm.serving.openai.longest_token import has_step, steps_of


class TokenBytes:
    """`of` and `text` of a token id. tokenizer None: there is no text."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer, self._known = tokenizer, dict[int, bytes]()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = [] if backend is None else list(steps_of(backend.decoder))
        self._bytes = fallback_bytes(tokenizer) if has_step(steps, "ByteFallback") else {}  # type: ignore[arg-type]
        self._added = {} if backend is None else backend.get_added_tokens_decoder()
        self._is_byte_level = has_step(steps, "ByteLevel")
        self._has_marks = has_step(steps, "Metaspace") or any("\u2581" in str(step.get("pattern")) for step in steps)

    def of(self, token_id: int) -> bytes:
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def text(self, token_id: int) -> str:
        return self.of(token_id).decode(errors="replace")

    def _read(self, token_id: int) -> bytes:
        if self._tokenizer is None:
            return b""
        if token_id in self._added:
            return str(self._added[token_id].content).encode()
        if token_id in self._bytes:
            return bytes([self._bytes[token_id]])
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if name is not None and self._has_marks:
            return str(name).replace("\u2581", " ").encode()
        if name is not None and self._is_byte_level and all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return str(self._tokenizer.decode([token_id])).encode()


def _byte_level() -> dict[str, int]:
    """GPT-2's alphabet: a byte that can be printed is that character, the others are those from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_level()
