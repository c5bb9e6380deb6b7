class SpecDecodingStats:
    @property
    def acceptance_length(self) -> float:
        return self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0
