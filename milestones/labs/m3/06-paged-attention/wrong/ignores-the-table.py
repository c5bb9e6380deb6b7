class PagedTorchBackend:
    def _read(self, kv_cache: torch.Tensor, metadata: AttentionMetadata, seq: int) -> torch.Tensor:
        block_size, seq_len = kv_cache.shape[2], metadata.spans[seq][2]
        blocks = sorted(metadata.block_ids[seq][: -(-seq_len // block_size)])
        first, end = blocks[0], blocks[0] + len(blocks)
        if blocks == list(range(first, end)):
            found = kv_cache[:, first:end]
        else:
            found = kv_cache.index_select(1, torch.tensor(blocks))
        return found.flatten(1, 2)[:, :seq_len].transpose(1, 2)
