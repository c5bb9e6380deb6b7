class ExpertsSpec:
    def experts_read(self, num_tokens: int) -> float:
        return self.num_experts * (1 - (1 - 1 / self.num_experts) ** (self.top_k * num_tokens))
