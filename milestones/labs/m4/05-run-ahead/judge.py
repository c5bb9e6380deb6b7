from types import SimpleNamespace

import pytest

from folovllm.core import run_ahead
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.run_ahead import can_run_ahead, most_blocks_of_next_step, reads_tokens
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


def running(prompt=4, output=0, computed=None, **params):
    """A running request; all its tokens are computed but for the last, unless `computed` says how many."""
    request = Request("r", None, list(range(prompt)), SamplingParams(**{"max_tokens": 100, **params}))
    seq = request.get_seqs()[0]
    seq.status = SequenceStatus.RUNNING
    seq.data.output_token_ids += range(output)
    seq.num_computed_tokens = prompt + output - 1 if computed is None else computed
    return request


def scheduler_with(*requests, free=9, budget=64, max_model_len=64, swapped=()):
    """What the functions look at of a scheduler; blocks of 4."""
    kv = KVCacheManager(num_blocks=free, block_size=4)
    return SimpleNamespace(
        running=list(requests), swapped=list(swapped), kv=kv,
        max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=max_model_len,
    )  # fmt: skip


def launch(*requests, tokens=1):
    """A step that computes so many tokens of each."""
    output = SchedulerOutput()
    for request in requests:
        output.add(request.get_seqs()[0], tokens)
    return output


@invariant(1)
@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.2},
        {"repetition_penalty": 0.8},
        {"use_beam_search": True, "n": 2, "temperature": 0},
        {"use_beam_search": True, "n": 1, "best_of": 2, "temperature": 0},
        {"extra_args": {"anything": 1}},
    ],
)
def test_draws_that_read_the_last_token(params):
    expect(bool(reads_tokens(SamplingParams(**params))), True)


@invariant(1)
def test_bad_words_read_it_too():
    params = SamplingParams()
    params.bad_words_token_ids = [[3, 4]]
    expect(bool(reads_tokens(params)), True)


@invariant(1)
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1, "top_p": 0.9}, {"stop": "x"}, {"logprobs": 2}])
def test_draws_that_do_not(params):
    expect(bool(reads_tokens(SamplingParams(**params))), False)


@invariant(2)
def test_nothing_in_the_way():
    a, b = running(), running()
    expect(can_run_ahead(scheduler_with(a, b), launch(a, b)), True)


@invariant(2)
def test_one_that_reads_its_tokens_makes_all_wait():
    a, b = running(), running(presence_penalty=0.5)
    expect(can_run_ahead(scheduler_with(a, b), launch(a, b)), False)


@invariant(2)
def test_an_empty_step_and_swapped_requests_wait():
    a, b = running(), running()
    expect(can_run_ahead(scheduler_with(a), launch()), False)
    expect(can_run_ahead(scheduler_with(a, swapped=[b]), launch(a)), False)


@invariant(2)
def test_to_ask_changes_nothing():
    a, b = running(), running()
    scheduler = scheduler_with(a, swapped=[b])
    answers = [can_run_ahead(scheduler, launch(a)) for _ in range(2)]
    expect((answers, scheduler.swapped == [b], scheduler.running == [a]), ([False, False], True, True))


@invariant(3)
def test_whose_next_token_is_its_last_does_not_go_on():
    a = running(output=2, max_tokens=3)
    expect(can_run_ahead(scheduler_with(a), launch(a)), False)


@invariant(3)
def test_whose_last_token_but_one_is_on_its_way_goes_on():
    a = running(output=1, max_tokens=3)
    expect(can_run_ahead(scheduler_with(a), launch(a)), True)


@invariant(3)
def test_nor_who_reaches_the_longest_length():
    a = running(prompt=4, output=3)
    expect(can_run_ahead(scheduler_with(a, max_model_len=8), launch(a)), False)
    expect(can_run_ahead(scheduler_with(a, max_model_len=9), launch(a)), True)


@invariant(3)
def test_it_is_enough_that_one_goes_on():
    ends, goes_on = running(output=2, max_tokens=3), running(output=2, max_tokens=9)
    step = launch(ends, goes_on)
    expect(can_run_ahead(scheduler_with(ends, goes_on), step), True)


@invariant(3)
def test_who_still_lacks_tokens_goes_on():
    a = running(prompt=8, computed=0, max_tokens=1)
    expect(can_run_ahead(scheduler_with(a), launch(a, tokens=4)), True)


@invariant(4)
def test_each_sequence_may_open_a_block():
    a, b, c = running(), running(), running()
    expect(most_blocks_of_next_step(scheduler_with(a, b, c), launch(a, b, c)), 3)


@invariant(4)
def test_and_what_is_missing_needs_blocks_as_well():
    a, b = running(), running(prompt=20, computed=0)  # 10 of its tokens are missing after the step: 3 blocks
    step = launch(a)
    step.add(b.get_seqs()[0], 10)
    expect(most_blocks_of_next_step(scheduler_with(a, b), step), 2 + 3)


@invariant(4)
def test_but_not_more_than_a_step_can_compute():
    a = running(prompt=40, computed=0)
    expect(most_blocks_of_next_step(scheduler_with(a, budget=8), launch(a, tokens=8)), 1 + 2)


@invariant(4)
def test_of_all_sequences_together():
    a, b = running(prompt=40, computed=0), running(prompt=40, computed=0)
    expect(most_blocks_of_next_step(scheduler_with(a, b, budget=8), launch(a, tokens=8)), 2 + 2)


@invariant(4)
def test_who_has_no_part_in_the_launched_step_counts_too():
    a, b, c = running(), running(), running()  # c lacks its token after the step, as before
    expect(most_blocks_of_next_step(scheduler_with(a, b, c), launch(a, b)), 3 + 1)


@invariant(5)
def test_where_blocks_may_be_short_it_waits():
    a, b = running(), running()
    expect(can_run_ahead(scheduler_with(a, b, free=1), launch(a, b)), False)


@invariant(5)
def test_just_enough_are_enough():
    a, b = running(), running()
    expect(can_run_ahead(scheduler_with(a, b, free=2), launch(a, b)), True)


@invariant(5)
def test_a_long_rest_needs_more_blocks_than_sequences_may_run():
    a = running(prompt=40, computed=0)  # 32 tokens are missing after the step: 1 + 8 blocks
    answers = [can_run_ahead(scheduler_with(a, free=free), launch(a, tokens=8)) for free in (8, 9)]
    expect(answers, [False, True])


@invariant(5)
def test_so_does_one_that_fills_the_step():
    a = running(prompt=100, computed=0)  # 64 tokens fill the next step: 1 + 16 blocks
    step = launch(a, tokens=20)
    answers = [can_run_ahead(scheduler_with(a, free=free, max_model_len=200), step) for free in (16, 17)]
    expect(answers, [False, True])


def watched(monkeypatch, name):
    """The calls of a function of run_ahead.py; for `_after`, the sequences that were taken from it."""
    calls, function = [], getattr(run_ahead, name)

    def called(*arguments):
        calls.append(name)
        return function(*arguments)

    def taken(*arguments):
        for pair in function(*arguments):
            calls.append(name)
            yield pair

    monkeypatch.setattr(run_ahead, name, taken if name == "_after" else called)
    return calls


@invariant(6)
def test_each_request_is_asked_once(monkeypatch):
    calls, a, b = watched(monkeypatch, "reads_tokens"), running(n=2), running()
    a.get_seqs()[1].status = SequenceStatus.RUNNING
    a.get_seqs()[1].num_computed_tokens = 3
    expect(can_run_ahead(scheduler_with(a, b, free=24), launch(a, b)), True)
    expect(len(calls), 2)


@invariant(6)
def test_sequences_are_looked_at_until_one_goes_on(monkeypatch):
    calls, requests = watched(monkeypatch, "_after"), [running() for _ in range(4)]
    can_run_ahead(scheduler_with(*requests, free=24), launch(*requests))
    expect(len(calls) <= 1, True)


@invariant(6)
def test_blocks_are_not_counted_where_there_are_enough_for_any_step(monkeypatch):
    calls, a = watched(monkeypatch, "most_blocks_of_next_step"), running()
    can_run_ahead(scheduler_with(a, free=8 + 64 // 4), launch(a))
    expect(calls, [])
