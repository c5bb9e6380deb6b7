class PagedTorchBackend:
    def _read(self, kv_cache: torch.Tensor, metadata: AttentionMetadata, seq: int) -> torch.Tensor:
        seq_len, size = metadata.spans[seq][-1], kv_cache.shape[2]
        blocks = metadata.block_ids[seq]
        needed = [blocks[i] for i in range(-(-seq_len // size))]
        pieces = [kv_cache[:, block].swapaxes(1, 2) for block in needed]
        pieces[-1] = pieces[-1][:, :, : seq_len - size * (len(needed) - 1)]
        if needed == [needed[0] + i for i in range(len(needed))]:
            whole = kv_cache[:, needed[0] : needed[-1] + 1]
            shape = (2, kv_cache.shape[3], seq_len, kv_cache.shape[4])
            s = whole.stride()
            return whole.as_strided(shape, (s[0], s[3], s[2], s[4]))
        return torch.cat(pieces, dim=2)

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = []
        for head, query in enumerate(q[0]):
            scores = (k[head // self.group_size] * query).sum(-1) * self.scale
            out.append(
                scores.sub(scores.max()).exp().div(scores.sub(scores.max()).exp().sum()) @ v[head // self.group_size]
            )
        return torch.stack(out).unsqueeze(0)


def tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    keys, queries = torch.meshgrid(
        torch.arange(seq_len, device=device), torch.arange(num_queries, device=device), indexing="xy"
    )
    return keys - queries <= seq_len - num_queries
