class VocabParallelEmbedding:
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        input_ids -= self.tokens.start
        rows = input_ids
        is_mine = (rows >= 0) & (rows < len(self.tokens))
        found = F.embedding(rows.where(is_mine, 0), self.weight)
        return self.group.all_reduce(found.where(is_mine[:, None], 0))
