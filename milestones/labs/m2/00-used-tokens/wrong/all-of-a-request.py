class Scheduler:
    @property
    def num_used_tokens(self) -> int:
        return sum(seq.num_computed_tokens for request in self.running for seq in request.get_seqs())
