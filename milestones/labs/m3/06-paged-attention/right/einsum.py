class PagedTorchBackend:
    def _read(self, kv_cache: torch.Tensor, metadata: AttentionMetadata, seq: int) -> torch.Tensor:
        seq_len, block_size = int(metadata.seq_lens[seq]), kv_cache.shape[2]
        table = metadata.block_tables[seq].tolist()[: (seq_len + block_size - 1) // block_size]
        flat = kv_cache.flatten(1, 2)
        start = table[0] * block_size
        if all(block == table[0] + place for place, block in enumerate(table)):
            return flat[:, start : start + seq_len].movedim(2, 1)
        slots = [block * block_size + offset for block in table for offset in range(block_size)]
        return flat[:, slots[:seq_len]].movedim(2, 1)

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.reshape(self.num_kv_heads, self.group_size, self.head_size)
        shares = torch.einsum("hgd,hkd->hgk", grouped * self.scale, k).softmax(dim=-1)
        return torch.einsum("hgk,hkd->hgd", shares, v).reshape(q.shape)


def tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    keys = torch.arange(seq_len, device=device)
    return keys <= keys[seq_len - num_queries :, None]
