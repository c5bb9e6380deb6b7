"""The example runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_example


@pytest.mark.exhaustive
def test_the_example_finds_where_one_device_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["example"])
    lines = run_example("simulate.py").splitlines()
    times = [float(line.split("p90")[1].split()[0]) for line in lines]
    assert len(lines) == 6
    assert times == sorted(times)
    assert ["too slow" in line for line in lines] == [time > 200 for time in times]
    assert "too slow" not in lines[0]
    assert "too slow" in lines[-1]
