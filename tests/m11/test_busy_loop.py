"""The core's loop with a core written by hand: what it is asked for, in which order, and what a client gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.input_processor import ProcessedInputs
from folovllm.engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType

ADD, ABORT, RESET = EngineCoreRequestType.ADD, EngineCoreRequestType.ABORT, EngineCoreRequestType.RESET_PREFIX_CACHE


class Core:
    """Makes so many steps; each has a token of every request, and with the last all of them end."""

    def __init__(self, num_steps: int) -> None:
        self.left, self.did = num_steps, list[str]()
        self.requests: dict[str, Any] = {}
        self.scheduler = SimpleNamespace(max_num_seqs=4, running=self.requests, waiting=[], swapped=[])
        self.scheduler.kv = SimpleNamespace(reset_prefix_cache=lambda: self.reset_prefix_cache())

    def add_request(self, request: Any) -> None:
        self.did.append(f"add {request.request_id}")
        self.requests[request.request_id] = request

    def abort_request(self, request_id: str, index: int | None = None) -> None:
        if self.requests.pop(request_id, None) is not None:
            self.did.append(f"abort {request_id}")

    def reset_prefix_cache(self) -> None:
        self.did.append("reset")

    def step(self) -> EngineCoreOutputs:
        if not self.requests:
            return EngineCoreOutputs()
        self.did.append("step")
        self.left -= 1
        made = [EngineCoreOutput(each.key, 0, [self.left]) for each in self.requests.values()]
        if self.left == 0:
            self.requests.clear()
        return EngineCoreOutputs(made)


class Inputs:
    def process(self, request_id: str, prompt: Any, params: Any, priority: int, key: int, *_: Any) -> Any:
        if not prompt.token_ids:
            raise ValueError("no tokens")
        return SimpleNamespace(request_id=request_id, key=key)


def add(key: int, name: str, *ids: int) -> Any:
    checked = ProcessedInputs(None, list(ids), SamplingParams(), None)
    return ADD, (EngineCoreRequest(key, name, checked, checked.params),)


def run(core: Any, *requests: Any, send: Any = None) -> tuple[Any, list[Any]]:
    """In the loop's thread, until all is done."""
    sent = list[Any]()
    loop = BusyLoop(core, Inputs(), send or sent.append)  # type: ignore[arg-type]
    loop.submit(requests)
    loop._thread.submit(lambda: None).result()
    loop.close()
    loop.close()  # twice is no error
    return core, sent


def test_what_comes_together_is_done_before_one_step_in_its_order() -> None:
    core, sent = run(Core(2), add(0, "a", 1), add(1, "b", 1), (RESET, ()))
    assert core.did == ["add a", "add b", "reset", "step", "step"]
    assert [[(each.key, each.new_token_ids) for each in message.outputs] for message in sent[:2]] == [
        [(0, [1]), (1, [1])], [(0, [0]), (1, [0])]
    ]  # fmt: skip
    assert [message.scheduler_stats.running for message in sent[:2]] == [2, 0]


def test_an_abort_ends_the_request_of_its_key_and_not_another_of_that_name() -> None:
    core, _ = run(Core(1), add(0, "a", 1), (ABORT, (0, "a")), add(1, "a", 1), (ABORT, (0, "a")))
    assert core.did == ["add a", "abort a", "add a", "step"]


def test_what_is_refused_goes_to_the_one_who_asked() -> None:
    core, sent = run(Core(1), add(0, "a"), add(1, "b", 1))
    assert core.did == ["add b", "step"]
    assert [repr(message.failures) for message in sent[:2]] == ["{0: ValueError('no tokens')}", "{}"]


def test_after_the_last_abort_the_client_learns_that_nothing_runs() -> None:
    _, sent = run(Core(9), add(0, "a", 1), (ABORT, (0, "a")))
    assert sent[-1].scheduler_stats.running == 0


@pytest.mark.parametrize("error", [ValueError("the device is gone"), SystemExit(1)], ids=repr)
def test_an_error_of_the_engine_is_sent_once_and_no_step_comes_after_it(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(core: Core) -> None:
        core.did.append("step")
        raise error

    monkeypatch.setattr(Core, "step", fails)
    core, sent = run(Core(1), add(0, "a", 1))
    assert [repr(error) in repr(each) and isinstance(each, Exception) for each in sent] == [True]
    assert core.did == ["add a", "step", "abort a"]


def test_what_fails_between_two_steps_is_an_error_of_the_engine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "reset_prefix_cache", lambda core: 1 / 0)
    core, sent = run(Core(1), add(0, "a", 1), (RESET, ()))
    assert [type(each) for each in sent] == [ZeroDivisionError]
    assert core.did == ["add a", "abort a"]


def test_without_a_client_its_requests_are_aborted() -> None:
    def gone(message: object) -> None:
        raise OSError

    core, _ = run(Core(9), add(0, "a", 1), add(1, "b", 1), send=gone)
    assert core.did == ["add a", "add b", "step", "abort a", "abort b"]
