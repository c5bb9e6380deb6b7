"""Name the valid word that a misspelt one is nearest to. vLLM: none"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """The closest valid name, or None when nothing is close enough to be what was meant."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'block_size'?`, or an empty string."""
    nearest = nearest_name(name, valid)
    return f"did you mean {nearest!r}?" if nearest else ""
