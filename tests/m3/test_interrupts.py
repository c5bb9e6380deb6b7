"""A step that does not happen, by Ctrl-C or by a fault, whatever it was to do: who is not lost by it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from folovllm import LLMEngine, SamplingParams
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import SequenceStatus
from tests.helpers import names, some, thinned
from tests.m2.interrupt_support import add_step_and_abort, assert_any_interrupt_changes_nothing
from tests.m2.support import assert_idle
from tests.m3.beam_oracle import beam_params
from tests.m3.oracle import Oracle
from tests.m3.support import PagedDesk

GREEDY = SamplingParams(temperature=0, max_tokens=12)
When = Callable[[SchedulerOutput], bool]


class FaultError(Exception):
    """Of the engine, not of one request."""


@contextmanager
def failing(engine: LLMEngine, when: When, error: BaseException, where: str) -> Iterator[list[SchedulerOutput]]:
    """Raise `error` in the first step of which `when` is true: before its blocks are moved, or in the model."""
    runner, hit = engine.runner, []
    execute, update = runner.execute_model, runner._update_batch
    current: list[SchedulerOutput] = []

    def fail_at(place: str) -> None:
        if place == where and not hit and when(current[-1]):
            hit.append(current[-1])
            # What was not moved is not there, and what the blocks held before is not what they should hold.
            for tensor in [*runner.kv_cache.tensors, *runner.mover.swap_tensors]:
                tensor.fill_(float("nan"))
            raise error

    def executing(scheduled: SchedulerOutput) -> object:
        current.append(scheduled)
        return execute(scheduled)

    def updating(scheduled: SchedulerOutput) -> None:
        update(scheduled)
        fail_at("move")

    handle = runner.model.register_forward_pre_hook(lambda module, args: fail_at("model"))
    runner.execute_model, runner._update_batch = executing, updating  # type: ignore[method-assign, assignment]
    try:
        yield hit
    finally:
        handle.remove()
        del runner.execute_model, runner._update_batch


def step_through(engine: LLMEngine) -> dict[str, list[list[int]]]:
    """To the end, through one interrupt or fault: {request: the tokens of its sequences}."""
    told: dict[str, list[list[int]]] = {}
    interrupted = steps = 0
    while engine.has_unfinished_requests():
        steps += 1
        assert steps < 1000, "somebody waits for ever"
        try:
            outputs = engine.step()
        except (KeyboardInterrupt, FaultError):
            interrupted += 1
            assert interrupted < 9
            continue
        engine.scheduler.check_invariants()
        for output in outputs:
            if output.finished:
                told[output.request_id] = [completion.token_ids for completion in output.outputs]
    return told


KINDS: dict[str, When] = {
    "fork": lambda step: bool(step.forks),
    "swap out": lambda step: bool(step.blocks_to_swap_out),
    "swap in": lambda step: bool(step.blocks_to_swap_in),
    "copy": lambda step: bool(step.blocks_to_copy),
    "decode": lambda step: step.total_num_scheduled_tokens == len(step.scheduled_seqs) > 2,
}


def load(engine: LLMEngine) -> dict[str, list[int]]:
    prompts = {str(i): [i + 1, 5, 9, 2, 6, 4 + i] for i in range(5)}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SamplingParams(n=2, top_k=1, max_tokens=12))
    return prompts


@pytest.mark.parametrize(("kind", "where"), thinned(names(KINDS), names(["move", "model"])))
def test_an_interrupted_step_is_computed_again_whatever_it_was_to_move(oracle: Oracle, kind: str, where: str) -> None:
    engine = oracle.make_llm(num_kv_blocks=16, block_size=4, preemption_mode="swap").engine
    prompts = load(engine)
    with failing(engine, KINDS[kind], KeyboardInterrupt(), where) as hit:
        told = step_through(engine)
    assert len(hit) == 1
    assert told == {name: [oracle.greedy(prompt, 12)] * 2 for name, prompt in prompts.items()}
    assert_idle(engine)


@pytest.mark.parametrize(("kind", "where"), thinned(names(KINDS), names(["move", "model"])))
def test_a_fault_costs_those_who_took_part_and_nobody_else(oracle: Oracle, kind: str, where: str) -> None:
    engine = oracle.make_llm(num_kv_blocks=16, block_size=4, preemption_mode="swap").engine
    prompts = load(engine)
    with failing(engine, KINDS[kind], FaultError("broken"), where) as hit:
        told = step_through(engine)
    assert len(hit) == 1
    lost = {seq.request_id for seq in hit[0].scheduled_seqs}
    assert lost
    assert told == {name: [oracle.greedy(prompt, 12)] * 2 for name, prompt in prompts.items() if name not in lost}
    assert_idle(engine)


def test_an_interrupt_while_the_scheduler_decides_loses_nothing(oracle: Oracle, monkeypatch) -> None:
    """A block that was taken from the pool and stands in no table yet would be gone for ever."""
    engine = oracle.make_llm(num_kv_blocks=16, block_size=4).engine
    prompts = load(engine)
    engine.step()
    pool = engine.scheduler.kv.pool
    allocate = pool.get_new_blocks

    def interrupted(*args: int, **kwargs: int) -> list[int]:
        allocate(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "get_new_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()  # the sequences of a fork part, and copy
    told = step_through(engine)
    assert told == {name: [oracle.greedy(prompt, 12)] * 2 for name, prompt in prompts.items()}
    assert_idle(engine)


def test_starting_over_forgets_all_blocks_and_no_token():
    desk = PagedDesk(4, num_swap_blocks=1, mode="swap", seed=1)
    for name in "abcd":
        desk.add(name, [1] * 4, max_tokens=9)
    desk.step()
    desk.step()
    tokens = {name: request.get_seqs()[0].get_token_ids() for name, request in desk.requests.items()}
    running, swapped, waiting = desk.where()
    assert running
    assert swapped
    assert waiting
    desk.interrupted_step()
    assert desk.where() == ([], [], sorted(running + swapped + waiting))
    assert {desk.status(name)[0] for name in desk.where()[2]} == {SequenceStatus.WAITING}
    assert (desk.kv.pool.num_used, desk.kv.swap_pool.num_used) == (0, 0)
    assert {name: request.get_seqs()[0].get_token_ids() for name, request in desk.requests.items()} == tokens
    desk.run()


@pytest.mark.parametrize("mode", some(["swap", "recompute"]))
def test_an_interrupt_anywhere_loses_no_block(oracle: Oracle, mode: str) -> None:
    """Ctrl-C before any line: while blocks are taken, copied, swapped and freed, beams branch, requests come and go."""
    engine = oracle.make_llm(num_kv_blocks=9, block_size=4, preemption_mode=mode, max_num_seqs=6).engine
    more = {"beams": beam_params(2, max_tokens=6), "other": GREEDY}
    assert_any_interrupt_changes_nothing(
        lambda: add_step_and_abort(engine, engine.scheduler.check_invariants, more), lambda: assert_idle(engine), 20
    )
    assert engine.scheduler.preempter.num_recomputed + engine.scheduler.preempter.num_swapped > 0
