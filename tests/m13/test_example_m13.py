"""examples/m13_restart.py says what it sets out to say."""

from __future__ import annotations

import pytest

from tests.helpers import run_example


@pytest.mark.exhaustive  # it starts two processes more
def test_the_second_engine_finds_what_the_killed_one_has_computed() -> None:
    first, second, last = run_example("m13_restart.py").splitlines()
    assert first.startswith("engine 1 found 0 of 190, 176 of 189")
    assert second.startswith("engine 2 found 176 of 190, 176 of 189")
    assert last == "the answers are the same"
