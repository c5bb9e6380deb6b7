from lab_judge import expect, invariant
from support import TOKEN, make_scheduler, running


def after_a_step(scheduler, seq, num_tokens):
    """The scheduler has counted the token that was scheduled; so many tokens were gained."""
    scheduler.schedule()
    seq.num_computed_tokens += 1
    for _ in range(num_tokens):
        seq.add_token_id(TOKEN)


@invariant(1)
def test_accepted_tokens_count_as_computed():
    scheduler = make_scheduler(guesses=4)
    seq = running(scheduler, "a", 10, num_computed=9)
    after_a_step(scheduler, seq, 3)
    scheduler.kv.accept_draft_tokens(seq, 2)
    expect(seq.num_computed_tokens, 12)


@invariant(1)
def test_where_none_was_right_none_counts():
    scheduler = make_scheduler(guesses=4)
    seq = running(scheduler, "a", 10, num_computed=9)
    after_a_step(scheduler, seq, 1)
    scheduler.kv.accept_draft_tokens(seq, 0)
    expect((seq.get_len(), seq.num_computed_tokens), (11, 10))


@invariant(2)
def test_the_blocks_behind_the_end_are_free_again():
    scheduler = make_scheduler(guesses=4, num_blocks=8)
    seq = running(scheduler, "a", 10, num_computed=9)
    scheduler.schedule()  # slots up to 13: a fourth block
    expect((len(seq.block_ids), scheduler.kv.pool.num_free), (4, 4))
    seq.num_computed_tokens = 10
    seq.add_token_id(TOKEN)
    seq.add_token_id(TOKEN)  # 12 tokens fit into three
    scheduler.kv.accept_draft_tokens(seq, 1)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3], 5))


@invariant(3)
def test_the_last_token_keeps_its_block():
    scheduler = make_scheduler(guesses=8, num_blocks=8)
    seq = running(scheduler, "a", 12, num_computed=11)
    after_a_step(scheduler, seq, 1)  # slots up to 19: five blocks; 13 tokens, of which 12 are computed
    scheduler.kv.accept_draft_tokens(seq, 0)
    expect(seq.block_ids, [1, 2, 3, 4])


@invariant(3)
def test_where_nothing_is_behind_the_end_nothing_changes():
    scheduler = make_scheduler(guesses=2, num_blocks=8)
    seq = running(scheduler, "a", 9, num_computed=8)
    after_a_step(scheduler, seq, 1)
    counts = dict(scheduler.kv._num_cached), scheduler.kv.pool.num_evicted
    scheduler.kv.accept_draft_tokens(seq, 0)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3], 5))
    expect((scheduler.kv._num_cached, scheduler.kv.pool.num_evicted), counts)


@invariant(3)
def test_blocks_of_another_size():
    scheduler = make_scheduler(guesses=8, num_blocks=8, block_size=8)
    seq = running(scheduler, "a", 12, num_computed=11)
    after_a_step(scheduler, seq, 5)  # slots up to 19: three blocks; 17 tokens
    scheduler.kv.accept_draft_tokens(seq, 4)
    expect(seq.block_ids, [1, 2, 3])


@invariant(4)
def test_the_last_block_is_freed_first():
    scheduler = make_scheduler(guesses=8, num_blocks=6)
    seq = running(scheduler, "a", 3, num_computed=2)
    after_a_step(scheduler, seq, 1)  # slots up to 10
    expect(seq.block_ids, [1, 2, 3])
    scheduler.kv.accept_draft_tokens(seq, 0)
    free = list(scheduler.kv.pool.get_all_free_blocks())
    expect(free, [4, 5, 6, 3, 2])


@invariant(4)
def test_all_that_are_behind_it_are_freed():
    scheduler = make_scheduler(guesses=8, num_blocks=16, block_size=1)
    seq = running(scheduler, "a", 3, num_computed=2)
    after_a_step(scheduler, seq, 1)  # slots up to 10; 4 tokens
    scheduler.kv.accept_draft_tokens(seq, 0)
    expect((seq.block_ids, scheduler.kv.pool.num_free), ([1, 2, 3, 4], 12))
