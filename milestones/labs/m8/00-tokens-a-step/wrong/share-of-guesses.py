class SpecDecodingStats:
    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 1.0
