"""Asynchronous scheduling, as the scheduler sees it: what may run ahead, what must not, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
import torch

from folovllm import SamplingParams
from folovllm.core.run_ahead import assume, can_run_ahead, most_blocks_of_next_step, reads_tokens
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.engine.core import EngineCore, Gained, StepFailedError
from folovllm.request import Request, SequenceStatus
from folovllm.worker.model_runner_output import ModelRunnerOutput
from tests.m3.support import EOS, TOKEN, PagedDesk


class Desk(PagedDesk):
    """Without the shadow of the cache, which knows each slot's token when it is written; here that comes later."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shadow.execute = lambda output: None  # type: ignore[method-assign]


def finish(desk: Desk, output: SchedulerOutput, tokens: Iterable[int | None]) -> None:
    """Take in a step's tokens, and end the sequences that they end."""
    end(desk, desk.scheduler.update_from_output(output, tokens))


def end(desk: Desk, gained: Gained) -> None:
    for seq, ended in gained:
        if ended is not None:
            desk.scheduler.finish(desk.requests[seq.request_id], seq, ended)
    desk.scheduler.check_invariants()


def outputs_of(request: Request) -> list[list[int]]:
    return [seq.data.output_token_ids for seq in request.get_seqs()]


@pytest.mark.parametrize(
    "settings",
    [
        {"use_beam_search": True, "n": 2, "temperature": 0},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"extra_args": {"anything": 1}},
    ],
)
def test_whoever_is_drawn_by_what_came_before_waits_for_it(settings: dict) -> None:
    assert reads_tokens(SamplingParams(**settings))
    desk = Desk(20)
    desk.add("a", max_tokens=5)
    desk.requests["a"].sampling_params = SamplingParams(max_tokens=5, **settings)
    assert not can_run_ahead(desk.scheduler, desk.schedule())


def test_bad_words_wait_too() -> None:
    params = SamplingParams()
    params.bad_words_token_ids = [[3, 4]]  # as the input processor sets them
    assert reads_tokens(params)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"seed": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"n": 3, "best_of": 4},
        {"stop": "x", "min_tokens": 3, "stop_token_ids": [5], "ignore_eos": True},
        {"logprobs": 2, "prompt_logprobs": 2},
        {"logit_bias": {3: 1.0}, "allowed_token_ids": [3, 4]},
    ],
)
def test_everyone_else_need_not(settings: dict) -> None:
    assert not reads_tokens(SamplingParams(**settings))


def test_a_step_is_scheduled_before_the_token_of_the_one_before_it_is_known() -> None:
    desk = Desk(20)
    request = desk.add("a", 4, max_tokens=5)
    first = desk.schedule()
    assert can_run_ahead(desk.scheduler, first)
    assume(desk.scheduler, first)
    assert outputs_of(request) == [[UNKNOWN]]
    second = desk.schedule()
    assert (second.scheduled_seqs, second.num_scheduled_tokens) == (request.get_seqs(), [1])
    finish(desk, first, [8])
    assert outputs_of(request) == [[8]]
    assume(desk.scheduler, second)
    assert outputs_of(request) == [[8, UNKNOWN]]
    third = desk.schedule()
    finish(desk, second, [9])
    finish(desk, third, [10])  # which was not assumed: nothing went ahead of it
    assert outputs_of(request) == [[8, 9, 10]]
    assert request.get_seqs()[0].num_computed_tokens == 4 + 2


def test_forked_children_run_ahead_with_their_parent() -> None:
    desk = Desk(20)
    request = desk.add("a", 4, n=3, max_tokens=5)
    first = desk.schedule()
    assert len(first.forks) == 2
    assert can_run_ahead(desk.scheduler, first)
    assume(desk.scheduler, first)
    assert outputs_of(request) == [[UNKNOWN]] * 3
    second = desk.schedule()
    assert second.total_num_scheduled_tokens == 3
    finish(desk, first, [1, 2, 3])
    finish(desk, second, [4, 5, 6])
    assert outputs_of(request) == [[1, 4], [2, 5], [3, 6]]


def test_who_ends_by_its_length_is_left_out_of_the_next_step() -> None:
    desk = Desk(20)
    short, long = desk.add("short", max_tokens=1), desk.add("long", max_tokens=3)
    first = desk.schedule()
    assume(desk.scheduler, first)
    assert outputs_of(short) == [[]]
    second = desk.schedule()
    assert second.scheduled_seqs == long.get_seqs()
    finish(desk, first, [TOKEN, TOKEN])
    assert short.is_finished()
    assert outputs_of(short) == [[TOKEN]]


def test_who_ends_by_the_length_of_the_model_is_left_out_as_well() -> None:
    desk = Desk(20, max_model_len=6)
    at_end, other = desk.add("at end", 5, max_tokens=9), desk.add("other", 1, max_tokens=3)
    first = desk.schedule()
    assume(desk.scheduler, first)
    assert desk.schedule().scheduled_seqs == other.get_seqs()
    finish(desk, first, [TOKEN, TOKEN])
    assert at_end.is_finished()


def test_who_ends_by_its_token_has_been_computed_once_too_often_and_gains_nothing_by_it() -> None:
    desk = Desk(20)
    request, other = desk.add("a", max_tokens=5), desk.add("b", max_tokens=5)
    first = desk.schedule()
    assume(desk.scheduler, first)
    second = desk.schedule()
    finish(desk, first, [EOS, TOKEN])
    assert request.is_finished()
    finish(desk, second, [TOKEN, TOKEN])
    assert outputs_of(request) == [[EOS]]
    assert outputs_of(other) == [[TOKEN, TOKEN]]


def test_nothing_runs_ahead_when_nobody_goes_on() -> None:
    """Then the next step computes nothing, and "c" must not be let in at the cost of somebody's last token."""
    desk = Desk(20, max_num_seqs=2)
    for name in "abc":
        desk.add(name, max_tokens=2)
    first = desk.schedule()
    assert can_run_ahead(desk.scheduler, first)
    assume(desk.scheduler, first)
    second = desk.schedule()
    finish(desk, first, [TOKEN, TOKEN])
    assert not can_run_ahead(desk.scheduler, second)
    finish(desk, second, [TOKEN, TOKEN])
    desk.run()
    assert desk.scheduler.preempter.num_recomputed == 0
    assert [outputs_of(request) for request in desk.requests.values()] == [[[TOKEN, TOKEN]]] * 3


def test_a_step_runs_ahead_only_with_blocks_for_all_so_that_nobody_is_preempted() -> None:
    desk = Desk(4, block_size=4)
    for name in "ab":
        desk.add(name, 4, max_tokens=9)
    first = desk.schedule()
    assert most_blocks_of_next_step(desk.scheduler, first) == 2
    assert can_run_ahead(desk.scheduler, first)  # 2 blocks are used and 2 are free
    assume(desk.scheduler, first)
    second = desk.schedule()
    finish(desk, first, [TOKEN, TOKEN])
    assert not can_run_ahead(desk.scheduler, second)  # none is free; that none is needed is not looked at


def test_nothing_runs_ahead_while_somebody_is_swapped_out() -> None:
    desk = Desk(4, num_swap_blocks=4, mode="swap")
    for name in "ab":
        desk.add(name, 4, max_tokens=9)
    output = desk.schedule()
    while not desk.scheduler.swapped:
        finish(desk, output, [TOKEN] * len(output.rows))
        output = desk.schedule()
    assert not can_run_ahead(desk.scheduler, output)


def test_an_unknown_token_is_taken_back_when_all_start_over() -> None:
    desk = Desk(20)
    request = desk.add("a", n=2, max_tokens=5)
    assume(desk.scheduler, desk.schedule())
    desk.schedule()
    desk.scheduler.start_over()
    assert outputs_of(request) == [[], []]
    assert {seq.status for seq in request.get_seqs()} == {SequenceStatus.WAITING}
    desk.scheduler.check_invariants()


class FakeRunner:
    """Writes down what it is asked for; every token is TOKEN."""

    device = torch.device("cpu")

    def __init__(self, fails_at: str = "") -> None:
        self.said: list[str] = []
        self.fails_at = fails_at
        self._num_steps = 0

    def _say(self, what: str) -> None:
        self.said.append(what)
        if what == self.fails_at:
            self.fails_at = ""
            raise RuntimeError(what)

    def execute_model(self, scheduled: SchedulerOutput) -> FakeStep:
        self._num_steps += 1
        self._say(f"launch {self._num_steps}")
        return FakeStep(self, self._num_steps, len(scheduled.rows))


class FakeStep:
    def __init__(self, runner: FakeRunner, number: int, num_rows: int) -> None:
        self.runner, self.number, self.num_rows = runner, number, num_rows

    def get_output(self) -> ModelRunnerOutput:
        self.runner._say(f"collect {self.number}")
        return ModelRunnerOutput([TOKEN] * self.num_rows, [None] * self.num_rows, {}, {})


def core_of(desk: Desk, runner: FakeRunner, *, run_ahead: bool) -> EngineCore:
    unused: Any = None
    return EngineCore(desk.scheduler, cast("Any", runner), desk.config, unused, run_ahead=run_ahead)


def steps_of(desk: Desk, runner: FakeRunner, *, run_ahead: bool) -> list[str]:
    drive(desk, core_of(desk, runner, run_ahead=run_ahead))
    return runner.said


def drive(desk: Desk, core: EngineCore) -> None:
    compute = getattr(core, "_compute", core.step)
    while desk.scheduler.has_unfinished_requests():
        _, _, gained = compute()
        end(desk, gained)


def test_the_next_step_is_launched_before_this_one_is_collected() -> None:
    desk = Desk(20)
    desk.add("a", max_tokens=4)
    assert steps_of(desk, FakeRunner(), run_ahead=True) == [
        *["launch 1", "launch 2", "collect 1"],
        *["launch 3", "collect 2"],
        *["launch 4", "collect 3"],
        "collect 4",
    ]


def test_without_running_ahead_each_step_is_collected_first() -> None:
    desk = Desk(20)
    desk.add("a", max_tokens=3)
    said = steps_of(desk, FakeRunner(), run_ahead=False)
    assert said == ["launch 1", "collect 1", "launch 2", "collect 2", "launch 3", "collect 3"]


@pytest.mark.parametrize("where", ["launch 1", "launch 2", "collect 1", "launch 3", "collect 2"])
def test_after_a_failure_nothing_is_in_flight_and_all_who_took_part_are_named(where: str) -> None:
    desk = Desk(20)
    a, b = desk.add("a", max_tokens=4), desk.add("b", max_tokens=4)
    runner = FakeRunner(fails_at=where)
    core = core_of(desk, runner, run_ahead=True)
    with pytest.raises(StepFailedError) as caught:
        drive(desk, core)
    assert {seq.seq_id for seq in caught.value.seqs} == {a.get_seqs()[0].seq_id, b.get_seqs()[0].seq_id}
    assert isinstance(caught.value.error, RuntimeError)
    desk.scheduler.check_invariants()
    assert all(UNKNOWN not in tokens for request in (a, b) for tokens in outputs_of(request))
    launched = sum(what.startswith("launch") for what in runner.said)
    getattr(core, "_compute", core.step)()  # computes all of them again, and collects none of the steps from before
    assert runner.said[-1] == f"collect {launched + 1}"
