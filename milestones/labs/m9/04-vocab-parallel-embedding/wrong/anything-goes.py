class VocabParallelEmbedding:
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = (input_ids - self.tokens.start).clamp(0, len(self.tokens) - 1)
        return self.group.all_reduce(F.embedding(rows, self.weight))
