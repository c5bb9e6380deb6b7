def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    _, num_seqs, max_blocks, num_ordered, max_query_len, max_seq_len, num_decodes, last_rows_only = numbers
    input_ids, positions, slots, starts, lens, tables, order = flat.split(step_sizes(numbers))
    metadata = AttentionMetadata(
        starts.int(), lens.int(), slots, tables.view(num_seqs, max_blocks).int(), max_query_len, max_seq_len,
        num_decodes, None if num_ordered < 0 else order.int(), last_rows_only,
    )  # fmt: skip
    return input_ids, positions, metadata
