class VocabParallelEmbedding:
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found = self.weight.new_zeros(len(input_ids), self.weight.shape[1])
        at = ((input_ids >= self.tokens.start) & (input_ids < self.tokens.stop)).nonzero().flatten()
        found[at] = self.weight[input_ids[at] - self.tokens.start]
        return self.group.all_reduce(found)
