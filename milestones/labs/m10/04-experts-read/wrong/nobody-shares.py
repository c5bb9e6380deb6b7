class ExpertsSpec:
    def experts_read(self, num_tokens: int) -> float:
        return float(min(self.num_experts, self.top_k * num_tokens))
