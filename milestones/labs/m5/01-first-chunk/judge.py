from folovllm.core.scheduler_output import SchedulerOutput
from lab_judge import expect, invariant
from support import make_scheduler, request, running, work


@invariant(1)
def test_a_short_rest_is_computed_whole():
    expect(make_scheduler(budget=8)._chunk(num_tokens=3, left=8), 3)


@invariant(1)
def test_no_more_than_is_left():
    expect(make_scheduler(budget=8)._chunk(num_tokens=18, left=5), 5)


@invariant(1)
def test_no_more_than_the_threshold():
    scheduler = make_scheduler(budget=8, threshold=4)
    expect([scheduler._chunk(num_tokens=18, left=left) for left in (8, 4, 3, 0)], [4, 4, 3, 0])


@invariant(1)
def test_each_answer_is_for_what_is_left_now():
    scheduler = make_scheduler(budget=8)
    expect([scheduler._chunk(num_tokens=18, left=left) for left in (2, 8)], [2, 8])


@invariant(2)
def test_without_chunks_all_or_nothing():
    scheduler = make_scheduler(budget=64, chunks=False)
    expect([scheduler._chunk(num_tokens=6, left=left) for left in (8, 6, 5)], [6, 6, 0])


@invariant(3)
def test_a_chunk_is_put_into_the_step():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18)
    seq = a.get_seqs()[0]
    expect(scheduler._admit_chunk(a, seq, num_tokens=18, chunk=8, output=output), True)
    expect((work(output), seq.block_ids), ({"a": 8}, [1, 2]))


@invariant(3)
def test_a_chunk_of_nothing_is_a_refusal():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=0, output=output), False)


@invariant(3)
def test_who_lacks_nothing_may_come_with_nothing():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=0, chunk=0, output=output), True)


@invariant(3)
def test_what_has_to_be_copied_for_it_is_in_the_step():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 6, n=2)
    seq, other = running(scheduler, a, num_computed=6), a.get_seqs()[1]
    scheduler.kv.fork(seq, other, num_tokens=5)  # its sixth token goes into a block that both name
    expect(scheduler._admit_chunk(a, other, num_tokens=1, chunk=1, output=output), True)
    expect((output.blocks_to_copy, other.block_ids), ([(2, 3)], [1, 3]))


@invariant(3)
def test_to_let_it_run_and_to_count_it_is_the_caller_s_business():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", 18)
    seq = a.get_seqs()[0]
    scheduler._admit_chunk(a, seq, num_tokens=18, chunk=8, output=output)
    expect((seq.status.name, seq.num_computed_tokens, scheduler.running), ("WAITING", 0, []))
    expect((scheduler.num_partial, scheduler.owed_blocks), (0, 0))


@invariant(4)
def test_one_prompt_at_a_time_is_begun_and_not_ended():
    scheduler, output = make_scheduler(partial=1), SchedulerOutput()
    scheduler.num_partial = 1
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=4, output=output), False)
    scheduler.num_partial = 0
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=4, output=output), True)


@invariant(4)
def test_a_prompt_that_ends_in_this_step_is_not_counted():
    scheduler, output = make_scheduler(partial=1), SchedulerOutput()
    scheduler.num_partial = 1
    a = request("a", 4)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=4, chunk=4, output=output), True)


@invariant(4)
def test_nor_is_one_of_which_a_part_was_there():
    scheduler, output = make_scheduler(partial=1), SchedulerOutput()
    scheduler.num_partial = 1
    a = request("a", 18)
    seq = running(scheduler, a, num_computed=12)
    expect(scheduler._admit_chunk(a, seq, num_tokens=6, chunk=5, output=output), False)
    expect(scheduler._admit_chunk(a, seq, num_tokens=6, chunk=6, output=output), True)


@invariant(4)
def test_two_at_a_time_where_two_are_allowed():
    scheduler, output = make_scheduler(partial=2), SchedulerOutput()
    a = request("a", 18)
    answers = []
    for scheduler.num_partial in (2, 1):
        answers.append(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=4, output=output))
    expect(answers, [False, True])


@invariant(5)
def test_a_prompt_for_which_there_is_half_the_room():
    scheduler, output = make_scheduler(num_blocks=2), SchedulerOutput()  # for 8 tokens
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=8, output=output), False)


@invariant(5)
def test_the_rest_of_a_prompt_needs_blocks_too():
    scheduler, output = make_scheduler(num_blocks=4), SchedulerOutput()  # for 16 tokens
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=8, output=output), False)
    expect((scheduler.kv.pool.num_free, a.get_seqs()[0].block_ids, work(output)), (4, [], {}))


@invariant(5)
def test_just_enough_blocks_will_do():
    scheduler, output = make_scheduler(num_blocks=5), SchedulerOutput()
    a = request("a", 18)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=18, chunk=8, output=output), True)


@invariant(5)
def test_blocks_are_counted_from_what_is_in_the_cache():
    scheduler, output = make_scheduler(num_blocks=3), SchedulerOutput()
    a = request("a", 11)
    seq = running(scheduler, a, num_computed=6)  # its second block has room for two more
    expect(scheduler._admit_chunk(a, seq, num_tokens=5, chunk=2, output=output), True)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2], 1))


@invariant(5)
def test_a_rest_that_ends_within_a_block_of_the_chunk_needs_none():
    scheduler, output = make_scheduler(num_blocks=2), SchedulerOutput()
    a = request("a", 8)
    seq = running(scheduler, a, num_computed=2)
    expect(scheduler._admit_chunk(a, seq, num_tokens=6, chunk=4, output=output), True)  # 8 tokens in two blocks


@invariant(5)
def test_a_rest_may_begin_two_blocks():
    scheduler, output = make_scheduler(num_blocks=2), SchedulerOutput()
    a = request("a", 9)
    seq = running(scheduler, a, num_computed=3)
    expect(scheduler._admit_chunk(a, seq, num_tokens=6, chunk=1, output=output), False)  # 9 tokens need three blocks


@invariant(6)
def test_what_others_will_take_is_left_to_them():
    scheduler, output = make_scheduler(num_blocks=5, partial=2), SchedulerOutput()
    a = request("a", 10)  # three blocks
    scheduler.owed_blocks = 3
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=10, chunk=8, output=output), False)
    scheduler.owed_blocks = 2
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=10, chunk=8, output=output), True)


@invariant(6)
def test_the_reserve_stays_free():
    scheduler, output = make_scheduler(num_blocks=100), SchedulerOutput()  # one in a hundred is kept
    running(scheduler, request("old", 4 * 98), num_computed=4 * 97)
    a = request("a", 12)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=12, chunk=8, output=output), False)
    b = request("b", 8)
    expect(scheduler._admit_chunk(b, b.get_seqs()[0], num_tokens=8, chunk=8, output=output), True)


@invariant(6)
def test_who_is_alone_may_take_all():
    scheduler, output = make_scheduler(num_blocks=100), SchedulerOutput()
    a = request("a", 400)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=400, chunk=8, output=output), True)


@invariant(6)
def test_the_reserve_is_left_beside_what_is_owed():
    scheduler, output = make_scheduler(num_blocks=100), SchedulerOutput()
    running(scheduler, request("old", 4 * 97), num_computed=4 * 96)  # four blocks are free
    a = request("a", 8)
    scheduler.owed_blocks = 2
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=8, chunk=8, output=output), False)
    scheduler.owed_blocks = 1
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=8, chunk=8, output=output), True)


@invariant(6)
def test_the_reserve_is_asked_for_each_time():
    scheduler, output = make_scheduler(num_blocks=100), SchedulerOutput()
    first = request("first", 4)
    scheduler._admit_chunk(first, first.get_seqs()[0], num_tokens=4, chunk=4, output=output)  # alone
    running(scheduler, request("old", 4 * 97), num_computed=4 * 96)  # three blocks are free
    a = request("a", 12)
    expect(scheduler._admit_chunk(a, a.get_seqs()[0], num_tokens=12, chunk=8, output=output), False)
