"""What a page shows as texts of a trace; entrypoints/trace_texts.py decodes them.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Said:
    """What one sequence has said."""

    steps: list[int] = field(default_factory=list)
    """In which step each token was drawn, counted from the trace's first."""
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Texts:
    prompts: dict[int, str]
    """By request: its beginning."""
    said: dict[int, Said]
    """By sequence. A beam is not in it: which tokens are its own, the search decides later."""
