class ExpertsSpec:
    def experts_read(self, num_tokens: int) -> float:
        return 1 - (1 - self.top_k / self.num_experts) ** num_tokens
