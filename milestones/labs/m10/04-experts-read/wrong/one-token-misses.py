class ExpertsSpec:
    def experts_read(self, num_tokens: int) -> float:
        return self.num_experts * (self.top_k / self.num_experts)
