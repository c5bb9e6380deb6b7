def pack_step(
    input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
) -> tuple[list[int], torch.Tensor]:
    order = metadata.decode_order
    numbers = [
        len(input_ids), *metadata.block_tables.shape, 0 if order is None else len(order), metadata.max_query_len,
        metadata.max_seq_len, metadata.num_decodes, int(metadata.last_rows_only),
    ]  # fmt: skip
    arrays = [input_ids, positions, metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens]
    arrays += [metadata.block_tables.flatten(), *([] if order is None else [order])]
    return numbers, torch.cat([array.long() for array in arrays])


def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    _, num_seqs, max_blocks, _num_ordered, max_query_len, max_seq_len, num_decodes, last_rows_only = numbers
    input_ids, positions, slots, starts, lens, tables, order = flat.split(step_sizes(numbers))
    metadata = AttentionMetadata(
        query_start_loc=starts.int(), seq_lens=lens.int(), slot_mapping=slots,
        block_tables=tables.view(num_seqs, max_blocks).int(), max_query_len=max_query_len, max_seq_len=max_seq_len,
        num_decodes=num_decodes, decode_order=order.int(),
        last_rows_only=bool(last_rows_only),
    )  # fmt: skip
    return input_ids, positions, metadata
