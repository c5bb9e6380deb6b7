"""The engine's loop with an engine written by hand: what a client gets, and when."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.engine import busy_loop
from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.input_processor import Checked
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from folovllm.engine.snapshots import Load
from folovllm.outputs import RequestOutput

ADD, ABORT, READY = EngineCoreRequestType.ADD, EngineCoreRequestType.ABORT, EngineCoreRequestType.READY
Steps = list[dict[str, str | Exception]]
"""What each step makes: of a request, its text so far, with a full stop at the end; or an error."""
Got = dict[int, str | Exception]


class Engine:
    def __init__(self, steps: Steps) -> None:
        self.steps, self.made = steps, dict[str, str | Exception]()
        self.taken: list[str] = []
        self.did: list[str] = []

    def has_unfinished_requests(self) -> bool:
        return bool(self.steps)

    def add_request(self, request_id: str, prompt: Any, params: Any, *, priority: int) -> None:
        if not prompt.token_ids:
            raise ValueError("no tokens")
        self.did.append(f"add {request_id}")

    def abort_request(self, request_id: str) -> None:
        self.did.append(f"abort {request_id}")

    def reset_prefix_cache(self) -> None:
        self.did.append("reset")

    def advance(self) -> None:
        self.did.append("step")
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


class Held:
    """A loop whose thread does not start: a test makes its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: Steps, **names: bool) -> None:
        """names: of requests, numbered from 0, with whether each has its last output alone."""
        monkeypatch.setattr(busy_loop, "load_of", lambda engine: Load(4, len(engine.steps), 0, 0))
        self.engine, self.sent = Engine(steps), list[EngineCoreOutputs | Exception]()
        self.loop = BusyLoop(self.engine, self.sent.append)  # type: ignore[arg-type]
        monkeypatch.setattr(self.loop._thread, "submit", lambda call: None)
        for number, (name, final_only) in enumerate(names.items()):
            self.loop.submit([add(number, name, final_only=final_only)])
        self.loop._obey()

    def step(self, seconds: float = 0.0) -> Got:
        """One step; what was sent of it, by the requests' numbers. `seconds`: how long it took."""
        self.engine.advance()
        self.sent.clear()
        self.loop._hand_out(seconds)
        got: Got = {}
        for message in self.sent:
            assert isinstance(message, EngineCoreOutputs)
            got |= {n: out.prompt or "" if isinstance(out, RequestOutput) else out for n, out in message.outputs}
        return got

    def wants_ready(self) -> bool:
        return any(isinstance(message, EngineCoreOutputs) and message.wants_ready for message in self.sent)


def add(number: int, name: str, *, final_only: bool = False, ids: tuple[int, ...] = (1,)) -> Any:
    checked = Checked(None, list(ids), SamplingParams(), None)
    return ADD, (number, EngineCoreRequest(name, checked, checked.params, 0, final_only))


def test_until_the_client_is_ready_several_steps_go_out_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, [{"a": text} for text in ("x", "xy", "xyz", "xyzu", "xyzuv")], a=False)
    assert (held.step(), held.wants_ready()) == ({0: "x"}, False)
    assert (held.step(), held.wants_ready()) == ({0: "xy"}, True)
    assert held.step() == {}
    held.loop.submit([(READY, (0.0,))])
    assert (held.step(), held.wants_ready()) == ({0: "xyzu"}, True)
    assert held.step() == {}
    assert held.engine.taken == ["a"] * 3  # an output that the next step replaces is not even made


def test_who_wants_the_end_gets_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, [{"a": "x"}, {"a": "xy"}, {"a": "xyz."}], a=True)
    assert [held.step() for _ in range(3)] == [{}, {}, {0: "xyz."}]
    assert held.engine.taken == ["a"]


def test_first_and_last_outputs_and_errors_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ValueError("gone")
    held = Held(monkeypatch, [{"a": "x"}, {"a": "xy", "b": "u"}, {"b": gone}, {"a": "xyz."}], a=False, b=False)
    held.loop._due = math.inf  # the client writes
    assert [held.step() for _ in range(4)] == [{0: "x"}, {1: "u"}, {1: gone}, {0: "xyz."}]


def test_what_is_due_before_the_next_step_ends_does_not_wait_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a slow step would otherwise come a whole step late."""
    held = Held(monkeypatch, [{"a": text} for text in ("x", "xy", "xyz")], a=False)
    held.step()
    held.loop.submit([(READY, (1e6,))])
    assert held.step(seconds=1.0) == {}
    assert held.step(seconds=2e6) == {0: "xyz"}


def test_a_message_of_a_name_that_is_used_again_has_its_request_s_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old request has its last token, and before that is handed out it is aborted and another has its name."""
    held = Held(monkeypatch, [{"a": "old."}, {"a": "new"}], a=False)
    held.loop.submit([(ABORT, (0, "a")), add(1, "a")])
    assert held.step() == {0: "old."}  # which no one asks for any more
    held.loop._obey()
    assert held.step() == {1: "new"}
    held.loop.submit([(ABORT, (0, "a"))])
    held.loop._obey()
    assert "abort a" not in held.engine.did


def test_what_the_engine_refuses_goes_to_the_one_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, [{"a": "x"}], a=False)
    held.loop.submit([add(1, "b", ids=())])
    held.loop._obey()
    assert repr(held.step()) == "{1: ValueError('no tokens'), 0: 'x'}"


def run(steps: Steps, *requests: Any) -> tuple[Engine, list[Any]]:
    """In the loop's thread, until all is done."""
    engine, sent = Engine(steps), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busy_loop, "load_of", lambda engine: Load(4, 0, 0, 0))
        loop = BusyLoop(engine, sent.append)  # type: ignore[arg-type]
        loop.submit(requests)
        loop._thread.submit(lambda: None).result()
        loop.close()
        loop.close()  # twice is no error
    return engine, sent


def test_what_comes_together_is_done_before_one_step_in_its_order() -> None:
    engine, _ = run([{"a": "x."}], add(0, "a"), add(1, "b"), (EngineCoreRequestType.RESET_PREFIX_CACHE, ()))
    assert engine.did[:4] == ["add a", "add b", "reset", "step"]
    assert engine.did.count("abort b") == 1  # close() leaves nothing behind


@pytest.mark.parametrize("error", [ValueError("the device is gone"), SystemExit(1)], ids=repr)
def test_an_error_of_the_engine_is_sent_once_and_no_step_comes_after_it(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(engine: Engine) -> None:
        engine.did.append("step")
        raise error

    monkeypatch.setattr(Engine, "advance", fails)
    engine, sent = run([{"a": "x"}], add(0, "a"))
    assert [repr(error) in repr(each) and isinstance(each, Exception) for each in sent] == [True]
    assert engine.did == ["add a", "step", "abort a"]


def test_what_fails_between_two_steps_is_an_error_of_the_engine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "reset_prefix_cache", lambda engine: 1 / 0)
    engine, sent = run([{"a": "x"}], add(0, "a"), (EngineCoreRequestType.RESET_PREFIX_CACHE, ()))
    assert [type(each) for each in sent] == [ZeroDivisionError]
    assert engine.did == ["add a", "abort a"]


def test_without_a_client_its_requests_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, [{"a": "x"}], a=False, b=True)

    def gone(message: object) -> None:
        raise OSError

    held.loop._send = gone
    held.step()
    assert held.engine.did[-2:] == ["abort a", "abort b"]
