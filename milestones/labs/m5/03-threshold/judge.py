from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.prompt_shares import half, share_out, top_up
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import request


def prefills(**tokens_to_compute):
    """Requests under way by name, each with what its one sequence lacks of its prompt."""
    made = [(request(name, num_tokens), num_tokens) for name, num_tokens in tokens_to_compute.items()]
    return [(a, [(a.get_seqs()[0], num_tokens)]) for a, num_tokens in made]


def shares(prefills, left, prompt_cap):
    return {a.request_id: share for a, _, share in share_out(prefills, left, prompt_cap)}


def in_step(num_tokens, given, num_blocks=8):
    """A prompt of `num_tokens` tokens of which a step computes `given`, its first: (kv, sequence, step)."""
    kv, output = KVCacheManager(num_blocks, block_size=4), SchedulerOutput()
    seq = request("a", num_tokens).get_seqs()[0]
    seq.status = SequenceStatus.RUNNING
    kv.allocate_slots([(seq, given)])
    output.add(seq, given)
    return kv, seq, output


def named(seq_tokens):
    return [(seq.seq_id, num_tokens) for seq, num_tokens in seq_tokens]


@invariant(1)
def test_half_of_an_odd_number():
    expect([half(8), half(7), half(1), half(0)], [4, 4, 1, 0])


@invariant(2)
def test_a_cap_is_the_most():
    expect(shares(prefills(a=20), left=16, prompt_cap=4), {"a": 4})
    expect(shares(prefills(a=20), left=16, prompt_cap=0), {"a": 0})


@invariant(2)
def test_without_a_cap_it_is_half_of_what_is_left():
    expect(shares(prefills(a=20), left=16, prompt_cap=None), {"a": 8})


@invariant(3)
def test_the_next_one_finds_what_is_left():
    halves = shares(prefills(a=20, b=20, c=20), left=16, prompt_cap=None)
    expect(halves, {"a": 8, "b": 4, "c": 2})


@invariant(3)
def test_no_more_than_is_left():
    expect(shares(prefills(a=20, b=20), left=6, prompt_cap=4), {"a": 4, "b": 2})


@invariant(3)
def test_no_more_than_is_lacking():
    expect(shares(prefills(a=3, b=20), left=16, prompt_cap=16), {"a": 3, "b": 13})


@invariant(3)
def test_a_group_lacks_what_its_sequences_lack_together():
    a = request("a", 5, n=2)
    group = [(seq, num_tokens) for seq, num_tokens in zip(a.get_seqs(), (2, 3), strict=True)]
    expect(shares([(a, group)], left=16, prompt_cap=16), {"a": 5})


@invariant(3)
def test_prompts_and_groups_are_only_read():
    given = prefills(a=20, b=20)
    groups = [group for _, group, _ in share_out(given, 6, 4)]
    expect((len(given), [named(group) for group in groups]), (2, [[("a-0", 20)], [("b-0", 20)]]))


@invariant(4)
def test_more_of_a_prompt_in_the_step():
    kv, seq, output = in_step(num_tokens=18, given=4)
    top_up([(seq, 18)], output, kv, left=3)
    expect((output.num_scheduled_tokens, output.total_num_scheduled_tokens, output.num_prompt_tokens), ([7], 7, 7))


@invariant(4)
def test_no_more_than_it_lacks():
    kv, seq, output = in_step(num_tokens=6, given=4)
    top_up([(seq, 6)], output, kv, left=8)
    expect((output.num_scheduled_tokens, output.total_num_scheduled_tokens), ([6], 6))


@invariant(4)
def test_who_is_not_in_the_step_gets_nothing():
    kv, seq, output = in_step(num_tokens=18, given=4)
    other = request("b", 9).get_seqs()[0]
    other.status = SequenceStatus.RUNNING
    expect(top_up([(other, 9)], output, kv, left=3), [])
    seq.status = SequenceStatus.WAITING  # it had to give way in this step
    expect(top_up([(seq, 18)], output, kv, left=3), [])
    expect(output.total_num_scheduled_tokens, 4)


@invariant(4)
def test_one_token_more_is_more():
    kv, seq, output = in_step(num_tokens=18, given=4)
    top_up([(seq, 18)], output, kv, left=1)
    expect(output.num_scheduled_tokens, [5])
    kv, seq, output = in_step(num_tokens=5, given=4)
    top_up([(seq, 5)], output, kv, left=8)
    expect(output.num_scheduled_tokens, [5])


@invariant(4)
def test_what_one_takes_the_next_does_not_have():
    kv, seq, output = in_step(num_tokens=6, given=4)
    other = request("b", 9).get_seqs()[0]
    other.status = SequenceStatus.RUNNING
    kv.allocate_slots([(other, 1)])
    output.add(other, 1)
    top_up([(seq, 6), (other, 9)], output, kv, left=3)
    expect(output.num_scheduled_tokens, [6, 2])


@invariant(4)
def test_who_gets_nothing_does_not_stop_the_others():
    kv, seq, output = in_step(num_tokens=18, given=4)
    absent, waits = request("b", 9).get_seqs()[0], request("c", 9).get_seqs()[0]
    absent.status = SequenceStatus.RUNNING
    expect(named(top_up([(absent, 9), (waits, 9), (seq, 18)], output, kv, left=3)), [("a-0", 7)])


@invariant(4)
def test_tokens_behind_the_prompt_are_no_prompt_tokens():
    kv, seq, output = in_step(num_tokens=4, given=4)
    for token_id in (7, 7, 7):
        seq.add_token_id(token_id)
    seq.num_computed_tokens, output = 4, SchedulerOutput()
    kv.allocate_slots([(seq, 1)])
    output.add(seq, 1)
    before = output.num_prompt_tokens
    top_up([(seq, 3)], output, kv, left=2)
    expect((output.num_scheduled_tokens, output.num_prompt_tokens - before), ([3], 0))


@invariant(5)
def test_there_are_blocks_for_all_it_computes():
    kv, seq, output = in_step(num_tokens=18, given=4)
    top_up([(seq, 18)], output, kv, left=4)
    expect((seq.block_ids, output.grown_seqs), ([1, 2], [seq]))


@invariant(5)
def test_without_blocks_it_stays_as_it_is():
    kv, seq, output = in_step(num_tokens=18, given=4, num_blocks=1)
    expect(top_up([(seq, 18)], output, kv, left=4), [])
    expect((output.num_scheduled_tokens, output.total_num_scheduled_tokens), ([4], 4))
    expect(output.grown_seqs, [])


@invariant(5)
def test_another_that_needs_no_block_gets_more():
    kv, seq, output = in_step(num_tokens=18, given=4, num_blocks=2)
    other = request("b", 9).get_seqs()[0]
    other.status = SequenceStatus.RUNNING
    kv.allocate_slots([(other, 1)])
    output.add(other, 1)
    top_up([(seq, 18), (other, 9)], output, kv, left=3)
    expect((output.num_scheduled_tokens, output.grown_seqs), ([4, 4], [other]))


@invariant(5)
def test_those_that_grew_before_stay_noted():
    kv, seq, output = in_step(num_tokens=18, given=4)
    other = request("b", 9).get_seqs()[0]
    output.grown_seqs.append(other)
    top_up([(seq, 18)], output, kv, left=4)
    expect(output.grown_seqs, [other, seq])


@invariant(6)
def test_the_answer_says_what_each_computes_in_all():
    kv, seq, output = in_step(num_tokens=18, given=4)
    expect(named(top_up([(seq, 18)], output, kv, left=3)), [("a-0", 7)])


@invariant(6)
def test_a_sequence_that_got_nothing_is_not_in_the_answer():
    kv, seq, output = in_step(num_tokens=18, given=4)
    other = request("b", 9).get_seqs()[0]
    other.status = SequenceStatus.RUNNING
    kv.allocate_slots([(other, 1)])
    output.add(other, 1)
    expect(named(top_up([(seq, 18), (other, 9)], output, kv, left=3)), [("a-0", 7)])
    expect(output.num_scheduled_tokens, [7, 1])


@invariant(6)
def test_who_was_through_its_prompt_is_not_in_the_answer():
    kv, seq, output = in_step(num_tokens=4, given=4)
    for token_id in (7, 7, 7):
        seq.add_token_id(token_id)  # it had been preempted, and computes its output anew as well
    expect(named(top_up([(seq, 7)], output, kv, left=2)), [])
    expect(output.num_scheduled_tokens, [6])


@invariant(4)
def test_each_gets_more_than_it_was_given():
    kv, _, output = in_step(num_tokens=18, given=4)
    other = request("b", 9).get_seqs()[0]
    other.status = SequenceStatus.RUNNING
    kv.allocate_slots([(other, 1)])
    output.add(other, 1)
    expect(named(top_up([(other, 9)], output, kv, left=3)), [("b-0", 4)])
