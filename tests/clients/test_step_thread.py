"""The step thread on an engine and an event loop written by hand: who is woken, when, and with what."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import pytest

from folovllm.engine import step_thread
from folovllm.engine.step_thread import StepThread
from folovllm.outputs import RequestOutput

Steps = list[dict[str, str | Exception]]
"""What each step makes: of a request, its text so far, with a full stop at the end; or an error."""


class Engine:
    def __init__(self, steps: Steps) -> None:
        self.steps, self.made = steps, dict[str, str | Exception]()
        self.taken: list[str] = []

    def has_unfinished_requests(self) -> bool:
        return bool(self.steps)

    def advance(self) -> None:
        if self.steps:
            self.made |= self.steps.pop(0)

    def drain(self, later: Set[str]) -> tuple[list[RequestOutput], dict[str, Exception]]:
        runs_on = {name for name, what in self.made.items() if isinstance(what, str) and not what.endswith(".")}
        made = {name: what for name, what in self.made.items() if name not in runs_on & later}
        self.made = {name: what for name, what in self.made.items() if name not in made}
        self.taken += made
        texts = {name: what for name, what in made.items() if isinstance(what, str)}
        outputs = [RequestOutput(name, text, [], finished=text.endswith(".")) for name, text in texts.items()]
        return outputs, {name: what for name, what in made.items() if isinstance(what, Exception)}


class Loop:
    """Runs nothing by itself: `due` is what was asked for."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.timers: list[float] = []

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self.due.append(lambda: call(*args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.timers.append(delay)
        return type("Timer", (), {"cancel": lambda self: None})()

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class Box:
    has_begun = False

    def __init__(self, *, wants_all: bool) -> None:
        self.wants_all = wants_all
        self.got: list[str | BaseException] = []

    def put(self, output: RequestOutput) -> None:
        self.got.append(output.prompt or "")

    def fail(self, error: BaseException) -> None:
        self.got.append(error)


def make(steps: Steps, *names: str, wants_all: bool = True) -> tuple[StepThread, Engine, Loop, dict[str, Box]]:
    engine, loop, boxes = Engine(steps), Loop(), {name: Box(wants_all=wants_all) for name in names}
    thread = StepThread(engine, loop, lambda name, box: boxes.get(name) is box)  # type: ignore[arg-type]
    for name, box in boxes.items():
        thread.expect(name, box)  # type: ignore[arg-type]
    return thread, engine, loop, boxes


def one_step(thread: StepThread, seconds: float = 0.0) -> None:
    thread.engine.advance()
    thread._collect(seconds)


def test_it_steps_to_the_end_without_the_event_loop_and_the_newest_output_replaces_the_others() -> None:
    thread, engine, loop, boxes = make([{"a": "x"}, {"a": "xy"}, {"a": "xyz."}], "a")
    assert thread.submit([])
    thread.run()
    assert not engine.steps
    assert len(loop.due) == 1
    loop.turn()
    assert boxes["a"].got == ["xyz."]


def test_who_wants_the_end_is_woken_once() -> None:
    thread, engine, loop, boxes = make([{"a": "x"}, {"a": "xy"}, {"a": "xyz."}], "a", wants_all=False)
    for _ in range(3):
        one_step(thread)
        loop.turn()
    assert boxes["a"].got == ["xyz."]
    assert engine.taken == ["a"]  # its other outputs were not even made


def test_first_and_last_outputs_and_errors_go_out_while_the_loop_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_thread, "LONGEST_REST", 1e6)
    monkeypatch.setattr(step_thread, "REST", 1e12)
    gone = ValueError("gone")
    thread, _, loop, boxes = make([{"a": "x"}, {"a": "xy", "b": "u"}, {"b": gone}, {"a": "xyz."}], "a", "b")
    seen = []
    for _ in range(4):
        one_step(thread)
        loop.turn()  # hands out
        loop.turn()  # and rests
        seen.append({name: box.got[-1] for name, box in boxes.items() if box.got})
    assert seen == [{"a": "x"}, {"a": "x", "b": "u"}, {"a": "x", "b": gone}, {"a": "xyz.", "b": gone}]
    assert boxes["a"].got == ["x", "xyz."]


def test_what_waits_goes_out_when_the_rest_is_over_though_no_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_thread, "LONGEST_REST", 1e6)
    monkeypatch.setattr(step_thread, "REST", 1e12)
    thread, _, loop, boxes = make([{"a": "x"}, {"a": "xy"}], "a")
    one_step(thread)
    loop.turn()
    loop.turn()
    one_step(thread, seconds=2e6)  # the next one may take as long, too
    loop.turn()
    assert boxes["a"].got == ["x"]
    (delay,) = loop.timers
    assert 0 < delay <= step_thread.LONGEST_REST
    thread._due = 0.0  # the clock has come this far
    thread._hand_out()
    assert boxes["a"].got == ["x", "xy"]


def test_no_output_is_made_that_the_next_step_replaces_before_the_loop_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_thread, "LONGEST_REST", 1e6)
    monkeypatch.setattr(step_thread, "REST", 1e12)
    thread, engine, loop, boxes = make([{"a": "x"}, {"a": "xy"}, {"a": "xyz"}, {"a": "xyzu"}], "a")
    one_step(thread)
    loop.turn()
    one_step(thread, seconds=2e6)  # the loop writes
    loop.turn()
    one_step(thread, seconds=0.1)  # it rests
    assert (engine.taken, loop.due, loop.timers) == (["a"], [], [])
    thread._due = 0.0  # the clock has come this far
    one_step(thread, seconds=0.1)
    loop.turn()
    assert boxes["a"].got == ["x", "xyzu"]
    assert engine.taken == ["a", "a"]


def test_commands_run_between_steps_and_readers_that_left_are_forgotten() -> None:
    thread, engine, loop, boxes = make([{"a": "x"}, {"a": "xy."}], "a")
    order = []
    thread.submit([lambda: order.append(len(engine.steps)), boxes.clear])
    thread.run()
    loop.turn()
    assert order == [2]
    assert not thread._mailboxes


def test_a_run_is_started_only_where_none_is() -> None:
    thread, *_ = make([])
    assert [thread.submit([]), thread.submit([])] == [True, False]
    thread.run()
    assert thread.submit([])
