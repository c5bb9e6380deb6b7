"""One engine, several threads; and code of a user's own that calls the engine from inside a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from folovllm import LLM, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.utils.engine_lock import EngineLock
from tests.m1.support import assert_empty, params, scripted

TIMEOUT = 600.0


@pytest.fixture(scope="module")
def llm(text_model_folder) -> LLM:
    return LLM(str(text_model_folder), dtype="float32", device="cpu")


def together(*calls: Callable[[], object]) -> list[object]:
    """Their results, each called in a thread of its own, all at the same time."""
    barrier = threading.Barrier(len(calls))

    def call(function: Callable[[], object]) -> object:
        barrier.wait(TIMEOUT)
        return function()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(call, function) for function in calls]]


def test_generate_from_threads_gives_each_its_own(llm):
    jobs = {name: [f"{name} {i}" for i in range(6)] for name in ("one", "two", "three")}

    def generate(name: str) -> list[str]:
        texts = []
        for _ in range(3):
            outputs = llm.generate(["x"] * len(jobs[name]), [scripted(text) for text in jobs[name]], use_tqdm=False)
            texts.append([output.outputs[0].text for output in outputs])
        assert texts[0] == texts[1] == texts[2]
        return texts[0]

    assert together(*(lambda name=name: generate(name) for name in jobs)) == list(jobs.values())
    assert_empty(llm.engine)


def test_an_error_in_one_thread_is_not_raised_in_another(llm):
    def bad() -> str:
        with pytest.raises(ValueError, match="nonsense"):
            llm.generate(["x", "y"], [scripted("text"), params(extra_args={"m1_calls": broken})], use_tqdm=False)
        return "failed"

    def broken() -> None:
        raise ValueError("nonsense")

    def good() -> str:
        return llm.generate("x", scripted("a longer text"), use_tqdm=False)[0].outputs[0].text

    assert together(bad, good, bad) == ["failed", "a longer text", "failed"]
    assert_empty(llm.engine)


def test_add_step_stream_and_abort_from_threads(llm):
    """Whoever steps, each gets what it asked for."""
    engine = llm.engine

    def stream() -> str:
        return "".join(delta.outputs[0].text for delta in engine.generate_stream("x", scripted("a stream")))

    def abort() -> None:
        for number in range(5):
            engine.add_request(f"gone-{number}", "x", params())
            engine.abort_request(f"gone-{number}")

    texts = together(
        stream, lambda: llm.generate("x", scripted("generated"), use_tqdm=False)[0].outputs[0].text, abort, stream
    )
    assert texts == ["a stream", "generated", None, "a stream"]
    assert_empty(engine)


@register_logits_processor("m1_calls")
class Calls(LogitsProcessor):
    """Calls extra_args["m1_calls"]: a user's code that reaches back into the engine."""

    def apply(self, logits):
        for row in self.rows:
            row.params.extra_args["m1_calls"]()
        return logits


class Generates:
    """Calls llm.generate() from inside one of its steps."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def __deepcopy__(self, memo):
        return self  # the engine keeps a copy of the parameters: an engine in there would be copied along

    def __call__(self) -> None:
        self.llm.generate("inner", SamplingParams(max_tokens=1), use_tqdm=False)


def test_generate_inside_a_step_is_one_clear_error_and_not_a_deadlock(llm):
    with pytest.raises(RuntimeError, match=r"^the engine is in the middle of a step, .* use another engine in there$"):
        llm.generate("outer", params(extra_args={"m1_calls": Generates(llm)}), use_tqdm=False)
    assert_empty(llm.engine)
    assert llm.generate("x", scripted("goes on"), use_tqdm=False)[0].outputs[0].text == "goes on"


def test_a_request_that_somebody_aborts_ends_its_generate(llm):
    """It would wait for an output that never comes."""

    class Aborts(Generates):
        def __call__(self) -> None:
            for request_id in list(self.llm.engine.requests):
                self.llm.engine.abort_request(request_id)

    with pytest.raises(RuntimeError, match=r"^requests \['request-\d+'\] are not in the engine: they have been abor"):
        llm.generate("x", params(extra_args={"m1_calls": Aborts(llm)}), use_tqdm=False)
    assert_empty(llm.engine)


def test_who_takes_the_lock_again_comes_after_one_who_waits():
    """A thread that takes the lock in a loop does not keep the others out."""
    lock, order = EngineLock(), []
    waits = threading.Event()

    def other() -> None:
        waits.set()
        with lock:
            order.append("other")

    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        waits.wait(TIMEOUT)
        while not lock._next.locked():  # it waits now
            pass
        order.append("first")
    with lock:
        order.append("again")
    thread.join(TIMEOUT)
    assert order == ["first", "other", "again"]


def test_an_error_releases_the_lock_too():
    lock = EngineLock()
    with pytest.raises(ValueError, match="inside"), lock, lock:
        raise ValueError("inside")
    assert together(lambda: lock.__enter__()) == [None]
