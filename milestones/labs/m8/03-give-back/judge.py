from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import TOKEN, make_scheduler, running


@invariant(1)
def test_a_step_without_guesses_counts_as_always():
    scheduler = make_scheduler(guesses=0)
    a, b = running(scheduler, "a", 10, num_computed=9), running(scheduler, "b", 20, num_computed=12)
    output = SchedulerOutput()
    output.add(a, 1)
    output.add(b, 5)
    scheduler.advance(output)
    expect((a.num_computed_tokens, b.num_computed_tokens), (10, 17))


@invariant(2)
def test_guesses_do_not_count_yet():
    scheduler = make_scheduler(guesses=4)
    seq = running(scheduler, "a", 10, num_computed=9)
    output = scheduler.schedule()
    expect((output.num_scheduled_tokens, output.num_drafts), ([5], {"a-0": 4}))
    scheduler.advance(output)
    expect(seq.num_computed_tokens, 10)


@invariant(2)
def test_each_sequence_has_guesses_of_its_own():
    scheduler = make_scheduler(guesses=0)
    a, b, c = (running(scheduler, name, 6, num_computed=5) for name in "abc")
    output = SchedulerOutput()
    output.add(a, 3)
    output.add(b, 1)
    output.add(c, 2)
    output.num_drafts = {"a-0": 2, "c-0": 1}
    scheduler.advance(output)
    expect([seq.num_computed_tokens for seq in (a, b, c)], [6, 6, 6])


@invariant(3)
def test_a_sequence_that_has_ended_is_left_alone():
    scheduler = make_scheduler(guesses=4)
    a, b = running(scheduler, "a", 6, num_computed=5), running(scheduler, "b", 6, num_computed=5)
    output = scheduler.schedule()
    a.status = SequenceStatus.FINISHED_ABORTED
    scheduler.advance(output)
    expect((a.num_computed_tokens, b.num_computed_tokens), (5, 6))


@invariant(4)
def test_the_blocks_behind_the_end_are_free_again():
    scheduler = make_scheduler(guesses=4, num_blocks=8)
    seq = running(scheduler, "a", 10, num_computed=9)
    scheduler.schedule()  # slots up to 13: a fourth block
    expect((len(seq.block_ids), scheduler.kv.pool.num_free), (4, 4))
    seq.add_token_id(TOKEN)
    seq.add_token_id(TOKEN)  # 12 tokens fit into three
    scheduler.drafts.give_back(seq)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3], 5))


@invariant(5)
def test_the_last_token_keeps_its_block():
    scheduler = make_scheduler(guesses=8, num_blocks=8)
    seq = running(scheduler, "a", 12, num_computed=11)
    scheduler.schedule()  # slots up to 19: five blocks
    seq.add_token_id(TOKEN)  # 13 tokens, of which 12 are computed
    seq.num_computed_tokens = 12
    scheduler.drafts.give_back(seq)
    expect(seq.block_ids, [1, 2, 3, 4])


@invariant(5)
def test_where_nothing_is_behind_the_end_nothing_changes():
    scheduler = make_scheduler(guesses=2, num_blocks=8)
    seq = running(scheduler, "a", 9, num_computed=8)
    scheduler.schedule()
    scheduler.drafts.give_back(seq)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3], 5))
    scheduler.drafts.give_back(seq)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3], 5))


@invariant(6)
def test_the_last_block_is_freed_first():
    scheduler = make_scheduler(guesses=8, num_blocks=6)
    seq = running(scheduler, "a", 4, num_computed=3)
    scheduler.schedule()  # slots up to 11
    expect(seq.block_ids, [1, 2, 3])
    scheduler.drafts.give_back(seq)
    free = list(scheduler.kv.pool.get_all_free_blocks())
    expect(free, [4, 5, 6, 3, 2])
