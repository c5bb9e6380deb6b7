"""The file in which a lab remembers how far it is: what cannot be read is one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.labs.lab import STATE, open_lab
from milestones.spec import MilestoneError


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"exercises": []}'])
def test_a_damaged_state_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / STATE).write_text(text)
    with pytest.raises(MilestoneError, match="cannot be read: .*; delete it and use `start` anew"):
        open_lab(tmp_path, tmp_path)
