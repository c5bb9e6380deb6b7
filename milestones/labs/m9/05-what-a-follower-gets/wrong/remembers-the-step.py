def pack_step(
    input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
) -> tuple[list[int], torch.Tensor]:
    global LAST
    LAST = metadata
    order = metadata.decode_order
    numbers = [len(input_ids), *metadata.block_tables.shape, 0 if order is None else len(order)]
    arrays = [input_ids, positions, metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens]
    arrays += [metadata.block_tables.flatten(), *([] if order is None else [order])]
    return numbers, torch.cat([array.long() for array in arrays])


def step_sizes(numbers: list[int]) -> list[int]:
    num_tokens, num_seqs, max_blocks, num_ordered = numbers
    return [num_tokens] * 3 + [num_seqs + 1, num_seqs, num_seqs * max_blocks, num_ordered]


def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    input_ids, positions, *_ = flat.split(step_sizes(numbers))
    return input_ids, positions, LAST
