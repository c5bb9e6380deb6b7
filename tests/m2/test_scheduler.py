"""The scheduler alone, on requests without a model: budgets, order, ends."""

from __future__ import annotations

import pytest

from folovllm.request import RequestStatus, SequenceStatus
from tests.m2.support import TOKEN, Desk, rows_of

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
CAPPED, ABORTED = SequenceStatus.FINISHED_LENGTH_CAPPED, SequenceStatus.FINISHED_ABORTED


def test_a_prompt_is_computed_whole_and_then_one_token_per_step():
    desk = Desk()
    desk.add("a", 5, max_tokens=3)
    assert desk.run() == [{"a": 5}, {"a": 1}, {"a": 1}]  # the prefill brings the first token already


def test_prompts_join_while_others_decode():
    desk = Desk()
    desk.add("a", 5, max_tokens=4)
    desk.step()
    desk.add("b", 6, max_tokens=2)
    assert desk.run() == [{"a": 1, "b": 6}, {"a": 1, "b": 1}, {"a": 1}]


def test_a_place_is_taken_in_the_step_after_it_was_left():
    desk = Desk(max_num_seqs=2)
    for name, max_tokens in (("a", 2), ("b", 5), ("c", 1)):
        desk.add(name, 3, max_tokens=max_tokens)
    assert desk.run() == [{"a": 3, "b": 3}, {"a": 1, "b": 1}, {"b": 1, "c": 3}, {"b": 1}, {"b": 1}]


def test_no_step_computes_more_tokens_than_its_budget():
    desk = Desk(max_num_batched_tokens=20, max_model_len=20)
    for name, num_tokens in (("a", 9), ("b", 9), ("c", 3), ("d", 2)):
        desk.add(name, num_tokens, max_tokens=2)
    assert desk.step() == {"a": 9, "b": 9}  # 2 are left, c needs 3
    assert desk.step() == {"a": 1, "b": 1, "c": 3, "d": 2}


def test_decoding_counts_against_the_budget_of_prompts():
    desk = Desk(max_num_batched_tokens=10, max_model_len=10)
    desk.add("a", 4, max_tokens=4)
    desk.add("b", 4, max_tokens=4)
    desk.step()
    desk.add("c", 9, max_tokens=1)
    assert desk.run() == [{"a": 1, "b": 1}] * 3 + [{"c": 9}]


def test_a_budget_below_max_num_seqs_bounds_how_many_run():
    desk = Desk(max_num_seqs=8, max_num_batched_tokens=3, max_model_len=3)
    for i in range(5):
        desk.add(str(i), 1, max_tokens=2)
    assert [len(step) for step in desk.run()] == [3, 3, 2, 2]  # all who run can decode, always


def test_a_long_prompt_is_not_overtaken_by_short_ones():
    desk = Desk(max_num_batched_tokens=20, max_model_len=20)
    desk.add("first", 15, max_tokens=2)
    desk.add("long", 18, max_tokens=2)
    for i in range(3):
        desk.add(f"short{i}", 1, max_tokens=1)
    assert desk.step() == {"first": 15}  # 5 tokens are left, which only the short ones could use
    assert desk.step() == {"first": 1, "long": 18, "short0": 1}


def test_the_lowest_priority_goes_first_and_among_equals_who_came_first():
    desk = Desk(max_num_seqs=1, policy="priority")
    for name, priority in (("c", 5), ("a", 0), ("d", 5), ("b", 0), ("urgent", -3)):
        desk.add(name, 2, priority=priority, max_tokens=1)
    assert [list(step) for step in desk.run()] == [["urgent"], ["a"], ["b"], ["c"], ["d"]]


def test_a_late_request_of_a_lower_number_overtakes_those_who_wait_but_not_those_who_run():
    desk = Desk(max_num_seqs=1, policy="priority")
    desk.add("runs", 2, priority=5, max_tokens=2)
    desk.add("waits", 2, priority=5, max_tokens=1)
    desk.step()
    desk.add("urgent", 2, priority=1, max_tokens=1)
    assert desk.run() == [{"runs": 1}, {"urgent": 2}, {"waits": 2}]


def test_the_rest_of_a_request_goes_before_those_who_came_later():
    desk = Desk(max_num_seqs=2)
    desk.add("r", 3, n=3, max_tokens=2)
    desk.add("later", 3, max_tokens=1)
    order = [set(step) for step in desk.run()]
    assert order[0] == order[1] == {"r"}
    assert order[2] == {"r", "later"}  # its third sequence and one free place


def test_a_request_between_two_waves_can_be_aborted():
    desk = Desk(max_num_seqs=1)
    request = desk.add("r", 3, n=3, max_tokens=1)
    desk.step()
    assert desk.status("r") == [CAPPED, WAITING, WAITING]
    desk.scheduler.abort(request)
    assert desk.status("r") == [CAPPED, ABORTED, ABORTED]
    assert request.status is RequestStatus.FINISHED_ABORTED
    assert not desk.scheduler.has_unfinished_requests()
    desk.scheduler.check_invariants()


def test_finishing_twice_keeps_the_first_status():
    desk = Desk()
    request = desk.add("a", max_tokens=1)
    desk.step()
    desk.scheduler.finish(request, request.get_seqs()[0], ABORTED)
    assert desk.status("a") == [CAPPED]
    desk.scheduler.check_invariants()


def test_who_left_is_told_to_the_worker_once():
    desk = Desk()
    desk.add("a", max_tokens=1)
    desk.add("b", max_tokens=9)
    desk.step()
    assert desk.scheduler.schedule().finished_seq_ids == ["a-0"]
    assert desk.scheduler.schedule().finished_seq_ids == []


def test_a_row_without_a_token_gains_nothing():
    desk = Desk()
    request = desk.add("a", 4)
    output = desk.scheduler.schedule()
    assert desk.scheduler.update_from_output(output, [None]) == []
    assert request.get_seqs()[0].get_output_len() == 0


def test_a_row_too_many_is_an_error():
    desk = Desk()
    desk.add("a")
    output = desk.scheduler.schedule()
    with pytest.raises(ValueError):
        desk.scheduler.update_from_output(output, [TOKEN, TOKEN])


def test_a_step_that_was_cut_short_is_computed_again():
    desk = Desk()
    desk.add("a", 5, max_tokens=2)
    desk.step()
    desk.add("b", 6, max_tokens=2)
    desk.scheduler.schedule()  # an interrupt: no update() follows
    output = desk.scheduler.schedule()
    by_name = dict(zip((seq.request_id for seq in rows_of(output)), output.num_scheduled_tokens, strict=True))
    assert by_name == {"a": 1, "b": 6}


def test_the_longest_context_ends_a_sequence():
    desk = Desk(max_model_len=8, max_num_batched_tokens=8)
    request = desk.add("a", 5, max_tokens=100)
    assert len(desk.run()) == 3
    assert request.get_seqs()[0].get_len() == 8


def test_used_tokens_are_those_whose_keys_and_values_lie_in_the_cache():
    desk = Desk()
    desk.add("a", 5)
    desk.add("b", 7)
    assert desk.scheduler.num_used_tokens == 0
    desk.step()
    assert desk.scheduler.num_used_tokens == 12  # the token that was drawn has not been computed
    desk.step()
    assert desk.scheduler.num_used_tokens == 14
