def pack_step(
    input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
) -> tuple[list[int], torch.Tensor]:
    num_seqs, max_blocks = metadata.block_tables.shape
    order = metadata.decode_order
    numbers = [
        num_seqs,
        max_blocks,
        len(input_ids),
        metadata.max_query_len,
        metadata.max_seq_len,
        metadata.num_decodes,
        1 if metadata.last_rows_only else 0,
        0 if order is None else 1,
        0 if order is None else len(order),
    ]
    flat = [x for row in metadata.block_tables.tolist() for x in row]
    flat += metadata.seq_lens.tolist() + metadata.query_start_loc.tolist()
    flat += input_ids.tolist() + positions.tolist() + metadata.slot_mapping.tolist()
    flat += [] if order is None else order.tolist()
    return numbers, torch.tensor(flat)


def step_sizes(numbers: list[int]) -> list[int]:
    num_seqs, max_blocks, num_tokens = numbers[:3]
    return [num_seqs * max_blocks, num_seqs, num_seqs + 1, num_tokens, num_tokens, num_tokens, numbers[-1]]


def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    num_seqs, max_blocks, _, longest_query, longest, decodes, last_rows, has_order, _ = numbers
    tables, lens, starts, ids, positions, slots, order = flat.split(step_sizes(numbers))
    small = [x.to(torch.int32) for x in (starts, lens, tables, order)]
    return (
        ids,
        positions,
        AttentionMetadata(
            small[0],
            small[1],
            slots,
            small[2].reshape(num_seqs, max_blocks),
            longest_query,
            longest,
            decodes,
            small[3] if has_order else None,
            last_rows == 1,
        ),
    )
