class Scheduler:
    @property
    def num_used_tokens(self) -> int:
        return sum(seq.get_len() for r in self.running for seq in r.get_seqs() if seq.status is SequenceStatus.RUNNING)
