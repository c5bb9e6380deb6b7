"""Ctrl-C at every line of the engine, one line at a time; what must hold after each."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import folovllm
from folovllm import LLM, LLMEngine, SamplingParams
from tests.m1.support import params

PACKAGE = str(Path(folovllm.__file__).parent)
Said = dict[str, list[list[int]]]
SEEDED = params(n=2, seed=11, temperature=1.3, max_tokens=7, ignore_eos=True)
GREEDY = params(temperature=0, max_tokens=9, ignore_eos=True)


@contextmanager
def pythons_own_handler() -> Iterator[None]:
    """A test run in the background of a shell is started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupts:
    """As a context: sends the process a SIGINT before line number `at` that the package runs; None: only counts."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.num_lines = at, 0

    def __enter__(self) -> Interrupts:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._line


def add(engine: LLMEngine, name: str, prompt: list[int], params: SamplingParams) -> None:
    """A request, whatever comes in between."""
    while not insist(lambda: engine.holds({name})):
        try:
            engine.add_request(name, prompt, params)
        except KeyboardInterrupt:
            continue


def insist(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except KeyboardInterrupt:
        return call()


def add_step_and_abort(engine: LLMEngine, check: Callable[[], None], more: dict[str, SamplingParams]) -> Said:
    """Requests come, run and go; what those say that stay."""
    said: Said = {}

    def step() -> None:
        for output in insist(engine.step):
            if output.finished:
                said[output.request_id] = [completion.token_ids for completion in output.outputs]
        insist(check)

    add(engine, "seeded", [5, 6, 7], SEEDED)
    add(engine, "gone", [1, 2, 3, 4], SEEDED)
    for name, asked in more.items():
        add(engine, name, [9, 8, 7, 6, 5], asked)
    step()
    add(engine, "greedy", [8, 9], GREEDY)
    step()
    insist(lambda: engine.abort_request("gone"))
    insist(check)
    while insist(engine.has_unfinished_requests):
        step()
    return said


def generate_beside_a_neighbour(llm: LLM, check: Callable[[], None]) -> Said:
    """A generate() that the interrupt ends, if it comes within it, and a request that is in the engine before."""
    add(llm.engine, "neighbour", [5, 6, 7], SEEDED)
    try:
        llm.generate([[4, 4], [4, 5]], GREEDY, use_tqdm=False)
    except KeyboardInterrupt:
        assert set(llm.engine.requests) <= {"neighbour"}
    insist(check)
    said: Said = {}
    while insist(llm.engine.has_unfinished_requests):
        for output in insist(llm.engine.step):
            said[output.request_id] = [completion.token_ids for completion in output.outputs]
    return said


def assert_any_interrupt_changes_nothing(scenario: Callable[[], Said], check: Callable[[], None], times: int) -> None:
    """The scenario says what it says without an interrupt, and leaves nothing behind, wherever the interrupt comes.

    times: how many of the lines are tried, spread evenly.
    """
    with Interrupts() as counted:
        expected = scenario()
    check()
    assert expected
    stride = max(1, counted.num_lines // times)
    for at in itertools.islice(range(1 + stride // 3, counted.num_lines, stride), times):
        with pythons_own_handler(), Interrupts(at):
            assert scenario() == expected, f"interrupted before line {at} of {counted.num_lines}"
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        check()
