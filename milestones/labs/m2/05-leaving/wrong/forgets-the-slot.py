class Scheduler:
    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        if seq.status is SequenceStatus.RUNNING:
            self.num_running_seqs -= 1
            self.finished_seq_ids.append(seq.seq_id)
        seq.transition(status)
