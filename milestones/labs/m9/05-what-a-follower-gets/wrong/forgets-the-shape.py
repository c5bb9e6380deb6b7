def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    _, _num_seqs, _max_blocks, num_ordered, max_query_len, max_seq_len, num_decodes, last_rows_only = numbers
    input_ids, positions, slots, starts, lens, tables, order = flat.split(step_sizes(numbers))
    metadata = AttentionMetadata(
        query_start_loc=starts.int(), seq_lens=lens.int(), slot_mapping=slots,
        block_tables=tables.int(), max_query_len=max_query_len, max_seq_len=max_seq_len,
        num_decodes=num_decodes, decode_order=None if num_ordered < 0 else order.int(),
        last_rows_only=bool(last_rows_only),
    )  # fmt: skip
    return input_ids, positions, metadata
