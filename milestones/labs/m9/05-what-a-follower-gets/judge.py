import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.worker.follower import pack_step, step_sizes, unpack_step
from lab_judge import expect, invariant

INT = torch.int32


def step(order=None):
    """A decode at position 9, and three tokens of a prompt: block tables of three."""
    metadata = AttentionMetadata(
        torch.tensor([0, 1, 4], dtype=INT), torch.tensor([10, 3], dtype=INT), torch.tensor([41, 8, 9, 10]),
        torch.tensor([[5, 6, 10], [2, 0, 0]], dtype=INT), max_query_len=3, max_seq_len=11, num_decodes=1,
        decode_order=order, last_rows_only=True,
    )  # fmt: skip
    return torch.tensor([7, 20, 21, 22]), torch.tensor([9, 0, 1, 2]), metadata


def there_and_back(order=None):
    numbers, flat = pack_step(*step(order))
    return unpack_step(numbers, flat)


@invariant(1)
def test_numbers_and_one_array():
    numbers, flat = pack_step(*step())
    expect({type(number) for number in numbers}, {int})
    expect((flat.dtype, list(flat.shape)), (torch.int64, [4 + 4 + 4 + 3 + 2 + 2 * 3]))


@invariant(1)
def test_the_numbers_say_how_long_it_is():
    numbers, flat = pack_step(*step())
    expect(sum(step_sizes(numbers)), 23)
    numbers, flat = pack_step(*step(torch.tensor([0], dtype=INT)))
    expect((sum(step_sizes(numbers)), len(flat)), (24, 24))


@invariant(1)
def test_each_step_has_sizes_of_its_own():
    with_order, without = pack_step(*step(torch.tensor([0], dtype=INT))), pack_step(*step())
    sizes = [step_sizes(numbers) for numbers, _ in (with_order, without)]
    expect([sum(each) for each in sizes], [24, 23])


@invariant(2)
def test_tokens_positions_slots():
    input_ids, positions, metadata = there_and_back()
    expect(input_ids, torch.tensor([7, 20, 21, 22]))
    expect(positions, torch.tensor([9, 0, 1, 2]))
    expect(metadata.slot_mapping, torch.tensor([41, 8, 9, 10]))


@invariant(3)
def test_starts_lengths_tables():
    _, _, metadata = there_and_back()
    expect(metadata.query_start_loc, torch.tensor([0, 1, 4], dtype=INT))
    expect(metadata.seq_lens, torch.tensor([10, 3], dtype=INT))
    expect(metadata.block_tables, torch.tensor([[5, 6, 10], [2, 0, 0]], dtype=INT))
    dtypes = {x.dtype for x in (metadata.query_start_loc, metadata.seq_lens, metadata.block_tables)}
    expect(dtypes, {INT})


@invariant(4)
def test_what_is_no_array():
    _, _, metadata = there_and_back()
    expect((metadata.max_query_len, metadata.max_seq_len, metadata.num_decodes), (3, 11, 1))
    expect(metadata.last_rows_only, True)
    expect(type(metadata.last_rows_only), bool)


@invariant(4)
def test_all_rows():
    ids, positions, metadata = step()
    metadata.last_rows_only = False
    _, _, found = unpack_step(*pack_step(ids, positions, metadata))
    expect(found.last_rows_only, False)


@invariant(4)
def test_no_number_follows_from_another():
    metadata = AttentionMetadata(
        torch.tensor([2, 3, 7], dtype=INT), torch.tensor([10, 3], dtype=INT), torch.tensor([2**40, 8]),
        torch.tensor([[5, 6], [2, 0]], dtype=INT), max_query_len=16, max_seq_len=64, num_decodes=2,
    )  # fmt: skip
    numbers, flat = pack_step(torch.tensor([7, 20]), torch.tensor([5, 3]), metadata)
    _, positions, found = unpack_step(numbers, flat)
    expect((found.max_query_len, found.max_seq_len, found.num_decodes), (16, 64, 2))
    expect((positions.tolist(), found.slot_mapping.tolist()), ([5, 3], [2**40, 8]))
    expect((positions.dtype, found.slot_mapping.dtype), (torch.int64, torch.int64))
    expect(found.query_start_loc.tolist(), [2, 3, 7])


@invariant(5)
def test_an_order():
    _, _, metadata = there_and_back(torch.tensor([1, 0], dtype=INT))
    expect(metadata.decode_order.tolist(), [1, 0])
    expect(metadata.decode_order.dtype, INT)


@invariant(5)
def test_no_order_and_an_empty_one():
    _, _, metadata = there_and_back()
    expect(metadata.decode_order, None)
    _, _, metadata = there_and_back(torch.tensor([], dtype=INT))
    expect(metadata.decode_order is None, False)


@invariant(6)
def test_two_steps_on_their_way():
    ids, positions, metadata = step()
    first = pack_step(ids, positions, metadata)
    other = AttentionMetadata(
        torch.tensor([0, 1], dtype=INT), torch.tensor([8], dtype=INT), torch.tensor([15]),
        torch.tensor([[3]], dtype=INT), max_query_len=1, max_seq_len=8, num_decodes=1,
    )  # fmt: skip
    second = pack_step(torch.tensor([30]), torch.tensor([7]), other)
    found, _, metadata = unpack_step(*first)
    expect(found.tolist(), [7, 20, 21, 22])
    expect((metadata.seq_lens.tolist(), metadata.max_seq_len, metadata.last_rows_only), ([10, 3], 11, True))
    expect(unpack_step(*second)[2].block_tables.tolist(), [[3]])


@invariant(6)
def test_what_is_given_stays_as_it_is():
    given = step()
    numbers, flat = pack_step(*given)
    metadata, before = given[2], step()[2]
    expect((given[0].tolist(), given[1].tolist()), ([7, 20, 21, 22], [9, 0, 1, 2]))
    expect((metadata.block_tables, metadata.seq_lens), (before.block_tables, before.seq_lens))
    expect((metadata.seq_lens.dtype, metadata.decode_order), (INT, None))
    copy = list(numbers)
    unpack_step(numbers, flat)
    expect(numbers, copy)
