class ExpertsSpec:
    def experts_read(self, num_tokens: int) -> float:
        read = 0.0
        for _ in range(num_tokens):
            read += (self.num_experts - read) * self.top_k / self.num_experts
        return read
