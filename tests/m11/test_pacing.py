"""When readers are woken, with a clock and an event loop that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from folovllm.engine import pacing
from folovllm.engine.pacing import LONGEST_REST, REST, Pacing


class Clock:
    """Also the event loop: what it is to call waits until a test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        monkeypatch.setattr(pacing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(pacing.asyncio, "get_running_loop", lambda: self)

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        self.calls.append((self.now, call, arguments))

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        self.calls.append((self.now + seconds, call, arguments))

    def run(self) -> float:
        """The next call; returns when it was due."""
        due, call, arguments = self.calls.pop(0)
        self.now = max(self.now, due)
        call(*arguments)
        return due


@pytest.mark.parametrize("wrote", [0.001, 1.0])
def test_readers_rest_several_times_as_long_as_they_wrote(wrote: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, woken = Clock(monkeypatch), list[float]()
    pieces = iter([True, True, False])
    paces = Pacing(lambda: (woken.append(clock.now), next(pieces))[1])
    paces.hand_out()
    clock.now += wrote
    clock.run()  # in line behind the readers, who have written
    for _ in range(5):
        paces.hand_out()  # more has come
    assert woken == [0.0]
    rest = min(REST * wrote, LONGEST_REST)
    assert clock.run() == pytest.approx(wrote + rest)
    assert woken == pytest.approx([0.0, wrote + rest])


def test_where_no_reader_has_anything_none_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, paces = Clock(monkeypatch), Pacing(lambda: False)
    paces.hand_out()
    assert (clock.calls, paces.rests) == ([], False)
