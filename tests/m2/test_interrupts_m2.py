"""Ctrl-C anywhere: no request is lost, none is left, and nobody's tokens change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from folovllm import LLM
from folovllm.utils.engine_lock import EngineLock, interrupts_allowed
from tests.m1.support import assert_empty
from tests.m2.interrupt_support import (
    add_step_and_abort,
    assert_any_interrupt_changes_nothing,
    generate_beside_a_neighbour,
    pythons_own_handler,
)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    with pythons_own_handler():
        yield


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_raised_at_the_end_of_the_block():
    done = []

    def block() -> None:
        with EngineLock():
            interrupt()
            with EngineLock():
                interrupt()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_it_is_allowed_it_is_raised_at_once():
    done = []

    def comes_in_the_long_part() -> None:
        with EngineLock(), interrupts_allowed():
            interrupt()
            done.append("never")

    def waits_when_the_long_part_begins() -> None:
        with EngineLock():
            interrupt()
            with interrupts_allowed():
                done.append("never")

    def comes_where_nothing_is_deferred() -> None:
        with interrupts_allowed():
            interrupt()
            done.append("never")

    for block in (comes_in_the_long_part, waits_when_the_long_part_begins, comes_where_nothing_is_deferred):
        with pytest.raises(KeyboardInterrupt):
            block()
    assert done == []


def test_a_deferred_block_inside_an_allowed_one_is_deferred():
    done = []

    def block() -> None:
        with EngineLock(), interrupts_allowed():
            with EngineLock():
                interrupt()
                done.append("inside")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inside"]


def test_other_threads_and_other_handlers_are_left_alone():
    handlers = []

    def look() -> None:
        with EngineLock():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        look()
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler, signal.SIG_IGN]


def test_an_interrupt_anywhere_in_add_step_and_abort(engine):
    assert_any_interrupt_changes_nothing(
        lambda: add_step_and_abort(engine, lambda: None, {}), lambda: assert_empty(engine), times=25
    )


def test_an_interrupt_anywhere_in_generate(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu")
    assert_any_interrupt_changes_nothing(
        lambda: generate_beside_a_neighbour(llm, lambda: None), lambda: assert_empty(llm.engine), times=25
    )
