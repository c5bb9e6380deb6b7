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


@invariant(6)
def test_a_pure_decode_draws_from_every_token_in_order():
    a = sequence("a", num_tokens=4, num_computed=3, blocks=[2])
    b = sequence("b", num_tokens=8, num_computed=7, blocks=[3, 7])
    expect(step((a, 1), (b, 1)).logits_at, None)
