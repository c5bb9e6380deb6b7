import torch

from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.input_batch import InputBatch
from lab_judge import expect, invariant


def sequence(name, num_tokens, num_computed, blocks):
    """Its token at position p is 100 + p."""
    data = SequenceData([100 + position for position in range(num_tokens)])
    return Sequence(name, name, data, SamplingParams(), block_ids=blocks, num_computed_tokens=num_computed)


def step(*wants, forks=()):
    """The inputs of a step, block size 4: wants are (sequence, number of tokens)."""
    batch = InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, device=torch.device("cpu"))
    for seq, _ in wants:
        batch.add(seq)
    return batch.prepare([seq for seq, _ in wants], [count for _, count in wants], list(forks))


@invariant(1)
def test_a_decode_computes_the_position_behind_the_cache():
    a = sequence("a", num_tokens=8, num_computed=7, blocks=[3, 7])
    inputs = step((a, 1))
    expect(inputs.positions.tolist(), [7])
    expect(inputs.input_ids.tolist(), [107])


@invariant(1)
def test_sequences_lie_end_to_end():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    inputs = step((a, 3), (b, 1))
    expect(inputs.positions.tolist(), [0, 1, 2, 7])
    expect(inputs.input_ids.tolist(), [100, 101, 102, 107])


@invariant(1)
def test_the_order_is_that_of_the_step_and_not_of_the_rows():
    batch = InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, device=torch.device("cpu"))
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    for seq in (b, sequence("has no part in it", 5, 4, [1, 4]), a):
        batch.add(seq)
    inputs = batch.prepare([a, b], [3, 1], [])
    expect((inputs.positions.tolist(), inputs.draws.tolist()), ([0, 1, 2, 7], [0, 1]))
    expect(inputs.metadata.block_tables.tolist(), [[2, 0], [3, 7]])


@invariant(1)
def test_to_prepare_a_step_changes_nothing():
    batch = InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, device=torch.device("cpu"))
    a, counts = sequence("a", num_tokens=8, num_computed=0, blocks=[3, 7]), [5]
    batch.add(a)
    first = batch.prepare([a], counts, [])
    expect((batch.prepare([a], counts, []).positions.tolist(), counts), ([0, 1, 2, 3, 4], [5]))
    expect((a.num_computed_tokens, int(batch.num_computed.sum())), (0, 0))
    expect(first.input_ids.tolist(), [100, 101, 102, 103, 104])


@invariant(1)
def test_the_list_of_sequences_is_only_read():
    batch = InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, device=torch.device("cpu"))
    seqs = [sequence("a", num_tokens=8, num_computed=7, blocks=[3, 7]), sequence("b", 4, 3, [5])]
    for seq in seqs:
        batch.add(seq)
    batch.prepare(seqs, [1, 1], [])
    expect([seq.seq_id for seq in seqs], ["a", "b"])


@invariant(1)
def test_each_step_has_tensors_of_its_own():
    batch = InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, device=torch.device("cpu"))
    a = sequence("a", num_tokens=8, num_computed=7, blocks=[3, 7])
    b = sequence("b", num_tokens=4, num_computed=3, blocks=[5])
    batch.add(a)
    batch.add(b)
    steps = [batch.prepare([seq], [1], []) for seq in (a, b)]
    expect([step.input_ids.tolist() for step in steps], [[107], [103]])
    expect([step.positions.tolist() for step in steps], [[7], [3]])


@invariant(1)
def test_tokens_positions_and_slots_are_int64():
    inputs = step((sequence("a", num_tokens=8, num_computed=7, blocks=[3, 7]), 1))
    kinds = [each.dtype for each in (inputs.input_ids, inputs.positions, inputs.metadata.slot_mapping)]
    expect(kinds, [torch.int64] * 3)


@invariant(2)
def test_a_slot_is_found_through_the_table():
    a = sequence("a", num_tokens=10, num_computed=9, blocks=[3, 7, 5])
    slots = step((a, 1)).metadata.slot_mapping.tolist()
    expect(slots, [5 * 4 + 1])


@invariant(2)
def test_a_prefill_crosses_from_block_to_block():
    a = sequence("a", num_tokens=10, num_computed=9, blocks=[3, 7, 5])
    b = sequence("b", num_tokens=6, num_computed=0, blocks=[1, 4])
    slots = step((a, 1), (b, 6)).metadata.slot_mapping.tolist()
    expect(slots, [21, 4, 5, 6, 7, 16, 17])


@invariant(3)
def test_the_metadata_says_where_each_sequence_ends():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    metadata = step((a, 3), (b, 1)).metadata
    expect(metadata.query_start_loc.tolist(), [0, 3, 4])
    expect(metadata.seq_lens.tolist(), [3, 8])
    expect((metadata.max_query_len, metadata.max_seq_len), (3, 8))


@invariant(3)
def test_the_largest_may_stand_anywhere():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    both = [step((a, 3), (b, 1)).metadata, step((b, 1), (a, 3)).metadata]
    expect([(each.max_query_len, each.max_seq_len) for each in both], [(3, 8), (3, 8)])


@invariant(3)
def test_the_metadata_is_int32():
    metadata = step((sequence("a", num_tokens=8, num_computed=7, blocks=[3, 7]), 1)).metadata
    kinds = [each.dtype for each in (metadata.query_start_loc, metadata.seq_lens, metadata.block_tables)]
    expect(kinds, [torch.int32] * 3)


@invariant(4)
def test_tables_are_as_wide_as_the_longest_needs():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    expect(step((a, 3), (b, 1)).metadata.block_tables.tolist(), [[2, 0], [3, 7]])


@invariant(4)
def test_a_block_that_is_not_full_has_a_column():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=6, num_computed=5, blocks=[3, 7])  # 6 tokens: one block and a half
    tables = step((a, 3), (b, 1)).metadata.block_tables.tolist()
    expect(tables, [[2, 0], [3, 7]])


@invariant(5)
def test_a_sequence_draws_at_its_last_token():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    inputs = step((a, 3), (b, 1))
    expect(inputs.draws.tolist(), [0, 1])
    expect(inputs.logits_at.tolist(), [2, 3])


@invariant(5)
def test_a_sequence_that_is_not_through_draws_nothing():
    a = sequence("a", num_tokens=6, num_computed=0, blocks=[2, 3])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[4, 7])
    inputs = step((a, 4), (b, 1))
    expect(inputs.draws.tolist(), [1])
    expect(inputs.logits_at.tolist(), [4])


@invariant(5)
def test_a_child_draws_where_its_parent_does():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    child = sequence("child", num_tokens=3, num_computed=0, blocks=[])
    inputs = step((a, 3), forks=[(a, child)])
    expect(inputs.draws.tolist(), [0, 1])
    expect(inputs.logits_at.tolist(), [2, 2])


@invariant(5)
def test_a_child_counts_after_all_sequences_also_those_that_do_not_draw():
    a = sequence("a", num_tokens=6, num_computed=0, blocks=[2, 3])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[4, 7])
    inputs = step((a, 4), (b, 1), forks=[(b, sequence("child", 8, 0, []))])
    expect((inputs.draws.tolist(), inputs.logits_at.tolist()), ([1, 2], [4, 4]))


@invariant(5)
def test_each_child_has_its_own_parent():
    a = sequence("a", num_tokens=3, num_computed=0, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    forks = [(b, sequence("first", 8, 0, [])), (a, sequence("second", 3, 0, []))]
    inputs = step((a, 3), (b, 1), forks=forks)
    expect((inputs.draws.tolist(), inputs.logits_at.tolist()), ([0, 1, 2, 3], [2, 3, 3, 2]))


@invariant(6)
def test_a_pure_decode_draws_from_every_token_in_order():
    a = sequence("a", num_tokens=4, num_computed=3, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    expect(step((a, 1), (b, 1)).logits_at, None)


@invariant(6)
def test_a_step_with_a_fork_says_where():
    a = sequence("a", num_tokens=2, num_computed=0, blocks=[2])
    inputs = step((a, 2), forks=[(a, sequence("child", 2, 0, []))])  # two tokens and two draws
    expect(inputs.logits_at is None, False)
    expect(inputs.logits_at.tolist(), [1, 1])


@invariant(6)
def test_a_step_without_a_draw_says_so():
    inputs = step((sequence("a", num_tokens=6, num_computed=0, blocks=[2, 3]), 4))
    expect(inputs.logits_at is None, False)
    expect(inputs.logits_at.tolist(), [])
