"""The longest token of a tokenizer, in characters: a text that cannot fit is refused before it is tokenised.

Tokenising a text takes a second or so for each million characters, only to find that it has too many tokens. A prompt
of C characters has at least C / longest tokens. That holds where each character ends up in a token. Where some may be
left out, such as the spaces before a token that strips them, there is no such number.

vLLM: renderers/params.py (TokenizeParams)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LISTS = ("normalizers", "pretokenizers", "decoders")
_NFC = 4
"""Characters that Unicode's composition makes one of, at most: U+1F82 is an alpha with three marks."""


def characters_a_token(tokenizer: Any) -> int | None:
    """The most characters that one token is; None where there is no bound, or none that is known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = () if backend is None else backend.get_added_tokens_decoder().values()
    if backend is None or any(token.lstrip or token.rstrip for token in added):
        return None
    normalizers, pre_tokenizers = list(steps_of(backend.normalizer)), list(steps_of(backend.pre_tokenizer))
    is_whole = getattr(backend.model, "byte_fallback", False) or has_step(pre_tokenizers, "ByteLevel")
    if not is_whole or not all(map(_keeps_all, normalizers + pre_tokenizers)):
        return None
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)))
    return longest * (_NFC if has_step(normalizers, "NFC") else 1)


def steps_of(step: Any) -> Iterator[dict[str, Any]]:
    """The steps that a step is made of, as tokenizer.json has them."""
    if step is None:
        return
    waiting = [json.loads(step.__getstate__())]
    while waiting:
        part = waiting.pop()
        inner = next((part[name] for name in _LISTS if name in part), None)
        if inner is None:
            yield part
        else:
            waiting += inner


def has_step(parts: list[dict[str, Any]], kind: str) -> bool:
    return any(part["type"] == kind for part in parts)


def _keeps_all(part: dict[str, Any]) -> bool:
    kind = part["type"]
    if kind == "Replace":
        what = part["pattern"].get("String")
        return what is not None and len(what) <= len(part["content"])
    if kind == "Split":
        return part["behavior"] != "Removed"
    return kind in ("ByteLevel", "Digits", "Metaspace", "NFC", "Prepend")
