class PagedTorchBackend:
    def _decode_chunks(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pieces: list[tuple[Rows, int]]
    ) -> torch.Tensor:
        grouped = self._grouped(q)[0] * self.scale
        scores = []  # [num_kv_heads, group_size, num_tokens] each; bmm into a part of one tensor takes 30% longer
        for rows, num_tokens in pieces:
            (k,) = self._read(rows, num_tokens, keys)
            scores.append(grouped.bmm(k.permute(1, 2, 0)).softmax(dim=-1))
        weights = torch.cat(scores, dim=-1)
        weighted, done = torch.zeros_like(grouped), 0
        for rows, num_tokens in pieces:
            (v,) = self._read(rows, num_tokens, values)
            weighted.baddbmm_(weights[..., done : done + num_tokens], v.transpose(0, 1))
            done += num_tokens
        return weighted.view_as(q)
