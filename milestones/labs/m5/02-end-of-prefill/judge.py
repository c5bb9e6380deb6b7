from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant
from support import make_scheduler, request, running

RUNNING = SequenceStatus.RUNNING


def named(forks):
    return [(parent.seq_id, child.seq_id) for parent, child in forks]


@invariant(1)
def test_siblings_draw_from_the_same_logits():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=3)
    seq = running(scheduler, a, num_computed=10)
    expect(scheduler._fork_siblings(a, seq, rows_left=5, output=output), 2)
    expect(named(output.forks), [("a-0", "a-1"), ("a-0", "a-2")])
    expect([child.status for child in a.get_seqs()], [RUNNING, RUNNING, RUNNING])


@invariant(1)
def test_they_share_the_whole_prompt():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=2)
    seq = running(scheduler, a, num_computed=8)
    scheduler.kv.allocate_slots([(seq, 2)])  # this step computes the last two
    scheduler._fork_siblings(a, seq, rows_left=5, output=output)
    child = a.get_seqs()[1]
    expect((child.block_ids, child.num_computed_tokens), ([1, 2, 3], 10))


@invariant(1)
def test_each_sibling_holds_its_blocks_once():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 8, n=3)
    seq = running(scheduler, a, num_computed=8)
    scheduler._fork_siblings(a, seq, rows_left=5, output=output)
    expect([scheduler.kv.pool.refs(block) for block in seq.block_ids], [3, 3])


@invariant(1)
def test_each_sibling_writes_an_output_of_its_own():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=3)
    seq = running(scheduler, a, num_computed=10)
    scheduler._fork_siblings(a, seq, rows_left=5, output=output)
    seq.add_token_id(7)
    expect([child.get_output_len() for child in a.get_seqs()], [1, 0, 0])


@invariant(1)
def test_forks_are_noted_behind_those_of_others():
    scheduler, output = make_scheduler(), SchedulerOutput()
    other = request("b", 4, n=2).get_seqs()
    output.forks.append((other[0], other[1]))
    a = request("a", 10, n=2)
    seq = running(scheduler, a, num_computed=8)
    scheduler.kv.allocate_slots([(seq, 2)])  # this step computes the last two
    expect(scheduler._fork_siblings(a, seq, rows_left=5, output=output), 1)
    expect(named(output.forks), [("b-0", "b-1"), ("a-0", "a-1")])
    expect((seq.num_computed_tokens, output.scheduled_seqs), (8, []))  # a fork computes nothing


@invariant(1)
def test_a_sibling_with_an_output_has_begun():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=3)
    seq = running(scheduler, a, num_computed=10)
    a.get_seqs()[1].data.output_token_ids.append(7)  # preempted, it waits to compute its own tokens again
    scheduler._fork_siblings(a, seq, rows_left=5, output=output)
    expect(named(output.forks), [("a-0", "a-2")])


@invariant(2)
def test_no_more_than_there_is_room_for():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=4)
    seq = running(scheduler, a, num_computed=10)
    expect(scheduler._fork_siblings(a, seq, rows_left=2, output=output), 2)
    expect(named(output.forks), [("a-0", "a-1"), ("a-0", "a-2")])


@invariant(2)
def test_the_others_stand_in_line():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=4)
    seq = running(scheduler, a, num_computed=10)
    scheduler._fork_siblings(a, seq, rows_left=2, output=output)
    expect(a in scheduler.waiting, True)


@invariant(2)
def test_none_is_left_to_stand_in_line():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=3)
    seq = running(scheduler, a, num_computed=10)
    scheduler.lines.enter_waiting(a)
    scheduler._fork_siblings(a, seq, rows_left=2, output=output)
    expect(a in scheduler.waiting, False)


@invariant(3)
def test_a_prompt_that_is_computed_again_forks_nothing():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=2)
    seq = running(scheduler, a, num_computed=10)
    seq.data.output_token_ids.append(7)  # it had drawn before it was preempted
    expect(scheduler._fork_siblings(a, seq, rows_left=5, output=output), 0)
    expect((named(output.forks), a in scheduler.waiting), ([], True))


@invariant(4)
def test_a_chunk_in_the_middle_forks_nothing():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18, n=2)
    seq = running(scheduler, a, num_computed=8)
    scheduler._end_prefills(a, [(seq, 8)], output)
    expect(named(output.forks), [])


@invariant(4)
def test_the_last_chunk_does():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18, n=2)
    seq = running(scheduler, a, num_computed=16)
    scheduler._end_prefills(a, [(seq, 2)], output)
    expect(named(output.forks), [("a-0", "a-1")])


@invariant(4)
def test_a_chunk_that_goes_on_into_an_output_ends_the_prompt_too():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=2)
    seq = running(scheduler, a, num_computed=8)
    seq.data.output_token_ids += [7, 7, 7]  # it was preempted, and computes them again: 10 + 3 tokens
    scheduler._end_prefills(a, [(seq, 5)], output)
    expect(a in scheduler.waiting, True)  # for its sibling


@invariant(4)
def test_a_decode_ends_no_prompt():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 6, n=2)
    seq = running(scheduler, a, num_computed=6)
    scheduler._end_prefills(a, [(seq, 1)], output)
    expect(named(output.forks), [])


@invariant(4)
def test_who_had_to_give_way_ends_nothing():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=2)
    seq = running(scheduler, a, num_computed=8)
    seq.status = SequenceStatus.WAITING
    scheduler._end_prefills(a, [(seq, 2)], output)
    expect(named(output.forks), [])


@invariant(5)
def test_all_that_run_take_room():
    scheduler, output = make_scheduler(seqs=5), SchedulerOutput()
    b = request("b", 4, n=2)
    running(scheduler, b, num_computed=4)
    for seq in b.get_seqs():
        seq.status = RUNNING
    a = request("a", 10, n=5)
    seq = running(scheduler, a, num_computed=8)
    scheduler._end_prefills(a, [(seq, 2)], output)
    children = [child for _, child in named(output.forks)]
    expect(children, ["a-1", "a-2"])


@invariant(5)
def test_beams_claim_the_rows_of_all_of_them():
    scheduler, output = make_scheduler(seqs=5), SchedulerOutput()
    b = Request("b", None, [7] * 4, SamplingParams(best_of=3, use_beam_search=True, temperature=0, max_tokens=32))
    running(scheduler, b, num_computed=4)  # one of its three
    a = request("a", 10, n=4)
    seq = running(scheduler, a, num_computed=8)
    scheduler._end_prefills(a, [(seq, 2)], output)
    expect(named(output.forks), [("a-0", "a-1")])


@invariant(5)
def test_who_was_forked_takes_room_too():
    scheduler, output = make_scheduler(seqs=4), SchedulerOutput()
    a = request("a", 10, n=5)
    first, second = running(scheduler, a, num_computed=8), a.get_seqs()[1]
    scheduler.kv.allocate_slots([(second, 8)])
    second.num_computed_tokens, second.status = 8, RUNNING
    scheduler._end_prefills(a, [(first, 2), (second, 2)], output)
    expect(named(output.forks), [("a-0", "a-2"), ("a-0", "a-3")])


@invariant(4)
def test_each_sequence_that_ends_its_prompt_may_fork():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 10, n=3)
    first, second = running(scheduler, a, num_computed=8), a.get_seqs()[1]
    first.data.output_token_ids.append(7)  # it had drawn before it was preempted
    scheduler.kv.allocate_slots([(second, 8)])
    second.num_computed_tokens, second.status = 8, RUNNING
    scheduler._end_prefills(a, [(first, 2), (second, 2)], output)
    expect(named(output.forks), [("a-1", "a-2")])
