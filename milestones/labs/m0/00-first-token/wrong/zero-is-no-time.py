class RequestMetrics:
    @property
    def ttft(self) -> float | None:
        return self.first_token_time - self.arrival_time if self.first_token_time else None
