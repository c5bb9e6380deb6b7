"""The loop of an engine that is apart: run here in a thread, with the front's end of the connection in the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from folovllm import LLMEngine, SamplingParams, StructuredOutputsParams
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.looks import EngineLook, Load
from folovllm.outputs import RequestOutput
from folovllm.serving.engine_proc import EngineProc, News, Order, packed, portable, read
from folovllm.serving.wire import Ask, Growing

PROMPT = [5, 6, 7]


class Front:
    """What the engine's loop is told, and what it sends."""

    def __init__(self) -> None:
        config = config_for_llm("embedded", dtype="float32", num_kv_blocks=256, max_num_seqs=2)
        self.engine = LLMEngine(config)
        self.connection, theirs = socket.socketpair()
        self.thread = threading.Thread(target=EngineProc(self.engine, theirs).run)
        self.thread.start()

    def tell(self, order: Order, *arguments: object) -> None:
        self.connection.sendall(packed((order, *arguments)))

    def ask(self, request_id: str, params: SamplingParams, *, final_only: bool = False) -> None:
        ask = Ask(request_id, {"prompt_token_ids": PROMPT}, params, 0)
        self.tell(Order.ADD, ask, final_only)

    def news(self) -> News:
        while not isinstance(message := read(self.connection), News):
            pass
        return message

    def all_gained(self, request_id: str) -> list[RequestOutput]:
        gained: list[RequestOutput] = []
        while not gained or not gained[-1].finished:
            gained += [each for each in self.news().gained if each.request_id == request_id]
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


def token_ids(gained: list[RequestOutput]) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in gained]


def alone(params: SamplingParams) -> list[int]:
    engine = LLMEngine(config_for_llm("embedded", dtype="float32", num_kv_blocks=64))
    engine.add_request("r", PROMPT, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0].outputs[0].token_ids


def test_until_the_front_is_ready_several_steps_tokens_go_out_as_one(front: Front) -> None:
    """It never says so here: the first token, the second, and at the end the 28 others."""
    front.ask("a", greedy(30))
    gained = front.all_gained("a")
    assert [len(ids) for ids in token_ids(gained)] == [1, 1, 28]
    assert [*chain(*token_ids(gained))] == alone(greedy(30))


def test_a_front_that_is_ready_gets_the_next_and_all_of_it_is_the_answer(front: Front) -> None:
    front.ask("a", greedy(30))
    growing, count = Growing(None, PROMPT), 0
    while not (news := front.news()).gained or not news.gained[0].finished:
        for gained in news.gained:
            growing.add(gained)
            count += 1
        if news.wants_ready:
            front.tell(Order.READY)
    growing.add(news.gained[0])
    assert count >= 3
    assert growing.output().outputs[0].token_ids == alone(greedy(30))


@pytest.mark.parametrize(
    ("params", "final_only"),
    [(greedy(20), True), (SamplingParams(seed=1, best_of=3, n=1, max_tokens=20), False)],
    ids=["asked for", "best_of"],
)
def test_where_the_end_alone_counts_one_output_is_sent(front: Front, params: SamplingParams, final_only: bool) -> None:
    front.ask("a", params, final_only=final_only)
    (gained,) = front.all_gained("a")
    assert gained.finished


def test_who_is_aborted_gives_its_row_back_and_says_no_more(front: Front) -> None:
    front.ask("a", greedy(1000))
    news = front.news()
    front.tell(Order.ABORT, "a")
    while news.load.running:
        news = front.news()
    assert news.load == Load(rows=2, running=0, waiting=0, swapped=0)
    front.ask("b", greedy(3))
    assert {each.request_id for each in front.all_gained("b")} == {"b"}


def test_a_look_is_answered_while_requests_run(front: Front) -> None:
    front.ask("a", greedy(1000))
    front.news()
    front.tell(Order.LOOK)
    while not isinstance(look := read(front.connection), EngineLook):
        pass
    assert (look.replica, look.stats.kv_blocks_total) == (None, 256)


def test_a_form_is_compiled_aside_and_kept(front: Front) -> None:
    pytest.importorskip("llguidance")
    form = StructuredOutputsParams(choice=["yes"])
    front.ask("a", SamplingParams(structured_outputs=form, max_tokens=8))
    text = "".join(each.outputs[0].text for each in front.all_gained("a"))
    assert text == "yes"


def test_what_the_engine_refuses_comes_back_by_name_and_others_go_on(front: Front) -> None:
    pytest.importorskip("llguidance")
    front.ask("a", SamplingParams(structured_outputs=StructuredOutputsParams(regex="("), max_tokens=8))
    failures: dict[str, Exception] = {}
    while not failures:
        failures = front.news().failures
    assert isinstance(failures["a"], ValueError)
    assert "structured_outputs" in str(failures["a"])
    front.ask("b", greedy(3))
    assert [*chain(*token_ids(front.all_gained("b")))] == alone(greedy(3))


def test_a_request_that_fails_in_a_step_fails_alone(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = front.engine.runner.execute_model, iter(range(100))
    monkeypatch.setattr(front.engine.runner, "execute_model", lambda s: 1 / 0 if next(calls) == 3 else real(s))
    front.ask("a", greedy(30))
    failures: dict[str, Exception] = {}
    while not failures:
        failures = front.news().failures
    assert isinstance(failures["a"], ZeroDivisionError)
    front.ask("b", greedy(3))
    assert front.all_gained("b")[-1].finished


def test_an_error_of_the_engine_itself_is_the_last_that_is_sent(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(front.engine, "advance", fails)
    front.ask("a", greedy(3))
    error = read(front.connection)
    assert isinstance(error, RuntimeError)
    assert str(error) == "the device is gone"
    front.thread.join(60)
    assert not front.thread.is_alive()


def test_when_the_front_goes_the_loop_ends_in_the_middle_of_a_request(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([front.engine.advance])
    monkeypatch.setattr(front.engine, "advance", lambda: next(steps, int)())  # one step, and then none
    front.ask("a", greedy(1000))
    assert [len(ids) for ids in token_ids(front.news().gained)] == [1]
    front.close()
    assert front.engine.stats().output_tokens == 1


class Stubborn(Exception):  # noqa: N818  it is its kind that counts
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_travel_is_told() -> None:
    assert str(portable(Stubborn(1, 2))) == "Stubborn: 1 and 2"
    error = ValueError("n must be at least 1")
    assert portable(error) is error
