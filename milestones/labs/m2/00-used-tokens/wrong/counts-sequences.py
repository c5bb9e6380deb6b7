class Scheduler:
    @property
    def num_used_tokens(self) -> int:
        return sum(1 for r in self.running for seq in r.get_seqs() if seq.status is SequenceStatus.RUNNING)
