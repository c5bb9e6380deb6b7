"""What runs in an engine's process: here in a thread, with the client's end of the connection in the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from folovllm import LLMEngine, SamplingParams, StructuredOutputsParams
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.busy_loop import BusyLoop
from folovllm.engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from folovllm.serving.engine_process import packed, portable, read, serve_engine

PROMPT = [5, 6, 7]


ADD, ABORT = EngineCoreRequestType.ADD, EngineCoreRequestType.ABORT


class Front:
    """The client's end of the connection: what the engine is sent, and what it sends."""

    def __init__(self) -> None:
        config = config_for_llm("embedded", dtype="float32", num_kv_blocks=256, max_num_seqs=2)
        self.engine = LLMEngine(config)
        self.connection, theirs = socket.socketpair()
        self.thread = threading.Thread(target=serve_engine, args=(self.engine, theirs))
        self.thread.start()
        self.names: list[str] = []

    def send(self, kind: EngineCoreRequestType, *arguments: object) -> None:
        self.connection.sendall(packed((kind, *arguments)))

    def add(self, request_id: str, params: SamplingParams) -> None:
        prompt: Any = {"prompt_token_ids": PROMPT}
        if params.structured_outputs is None:
            (prompt,) = self.engine.input_processor.check([PROMPT], params)
        self.send(ADD, EngineCoreRequest(len(self.names), request_id, prompt, params))
        self.names.append(request_id)

    def outputs(self) -> EngineCoreOutputs:
        while not isinstance(message := read(self.connection), EngineCoreOutputs):
            pass
        return message

    def gained(self, message: EngineCoreOutputs, request_id: str) -> list[EngineCoreOutput]:
        """Raises what ended the request."""
        key = self.names.index(request_id)
        if key in message.failures:
            raise message.failures[key]
        return [output for output in message.by_sequence() if output.key == key]

    def all_gained(self, request_id: str) -> list[EngineCoreOutput]:
        gained: list[EngineCoreOutput] = []
        while not gained or gained[-1].finish_reason is None:
            gained += self.gained(self.outputs(), request_id)
        return gained

    def close(self) -> None:
        self.connection.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.close()


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def token_ids(gained: list[EngineCoreOutput]) -> list[list[int]]:
    return [each.new_token_ids for each in gained]


def alone(params: SamplingParams) -> list[int]:
    engine = LLMEngine(config_for_llm("embedded", dtype="float32", num_kv_blocks=64))
    engine.add_request("r", PROMPT, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0].outputs[0].token_ids


def test_each_step_is_a_message_and_they_add_up_to_the_answer(front: Front) -> None:
    front.add("a", greedy(30))
    gained = token_ids(front.all_gained("a"))
    assert [len(ids) for ids in gained] == [1] * 30
    assert [*chain(*gained)] == alone(greedy(30))


def test_one_sequence_of_a_request_may_be_ended(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = front.engine.core.step, threading.Semaphore(3)
    monkeypatch.setattr(front.engine.core, "step", lambda: (steps.acquire(), step())[1])
    submit, submitted = BusyLoop.submit, threading.Semaphore(0)
    monkeypatch.setattr(BusyLoop, "submit", lambda loop, calls: (submit(loop, calls), submitted.release()))
    front.add("a", SamplingParams(n=2, seed=1, max_tokens=20, ignore_eos=True))
    front.send(ABORT, 7, "a", 0)  # another request's, whose id this was
    while not front.gained(front.outputs(), "a"):
        pass
    front.send(ABORT, 0, "a", 1)
    for _ in range(3):
        submitted.acquire()
    steps.release(100)
    lengths, last = {0: 0, 1: 0}, None
    while last != "length":
        for output in front.gained(front.outputs(), "a"):
            lengths[output.seq_index] += len(output.new_token_ids)
            last = output.finish_reason
    assert lengths[1] < lengths[0] == 19
    assert not front.engine.requests


def test_what_the_engine_refuses_comes_back_by_name_and_others_go_on(front: Front) -> None:
    pytest.importorskip("llguidance")
    front.add("a", SamplingParams(structured_outputs=StructuredOutputsParams(regex="("), max_tokens=8))
    with pytest.raises(ValueError, match="structured_outputs"):
        front.all_gained("a")
    front.add("b", greedy(3))
    assert [*chain(*token_ids(front.all_gained("b")))] == alone(greedy(3))


def test_a_request_that_fails_in_a_step_fails_alone(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = front.engine.runner.execute_model, iter(range(100))
    monkeypatch.setattr(front.engine.runner, "execute_model", lambda s: 1 / 0 if next(calls) == 3 else real(s))
    front.add("a", greedy(30))
    with pytest.raises(ZeroDivisionError):
        front.all_gained("a")
    front.add("b", greedy(3))
    assert front.all_gained("b")[-1].finish_reason == "length"


def test_when_the_client_goes_the_loop_ends_in_the_middle_of_a_request(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([front.engine.core.step])
    monkeypatch.setattr(front.engine.core, "step", lambda: next(steps, EngineCoreOutputs)())  # one step, and then none
    front.add("a", greedy(1000))
    assert [len(ids) for ids in token_ids(front.gained(front.outputs(), "a"))] == [1]
    front.close()
    assert front.engine.stats().output_tokens == 1
    assert not front.engine.requests


class Stubborn(Exception):  # noqa: N818  it is its kind that counts
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_of_an_error_that_cannot_be_pickled_its_text_is_kept() -> None:
    assert str(portable(Stubborn(1, 2))) == "Stubborn: 1 and 2"
    error = ValueError("n must be at least 1")
    assert portable(error) is error
