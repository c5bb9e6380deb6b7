def pack_step(
    input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
) -> tuple[list[int], torch.Tensor]:
    order = None
    numbers = [
        len(input_ids), *metadata.block_tables.shape, -1 if order is None else len(order), metadata.max_query_len,
        metadata.max_seq_len, metadata.num_decodes, int(metadata.last_rows_only),
    ]  # fmt: skip
    arrays = [input_ids, positions, metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens]
    arrays += [metadata.block_tables.flatten(), *([] if order is None else [order])]
    return numbers, torch.cat([array.long() for array in arrays])
