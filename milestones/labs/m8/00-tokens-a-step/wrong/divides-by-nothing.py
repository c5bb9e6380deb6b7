class SpecDecodingStats:
    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted_tokens / self.num_drafts
