class VocabParallelEmbedding:
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(input_ids), self.weight.shape[1])
        for place, token in enumerate(input_ids.tolist()):
            if token in self.tokens:
                found[place] = self.weight[token - self.tokens.start]
        return self.group.all_reduce(found)
