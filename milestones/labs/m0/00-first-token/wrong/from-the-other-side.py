class RequestMetrics:
    @property
    def ttft(self) -> float | None:
        return None if self.first_token_time is None else self.arrival_time - self.first_token_time
