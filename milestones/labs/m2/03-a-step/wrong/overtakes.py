class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids)
        self.finished_seq_ids = []
        for request in self.running:
            for seq in request.get_seqs():
                if seq.status is SequenceStatus.RUNNING:
                    output.add(seq, seq.get_len() - seq.num_computed_tokens)
        for request in self.waiting:
            while request.has(SequenceStatus.WAITING) and self._admit(request, output):
                pass
        return output
