class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids)
        for request in self.running:
            for seq in request.get_seqs():
                if seq.status is SequenceStatus.RUNNING:
                    output.add(seq, seq.get_len() - seq.num_computed_tokens)
        while self.waiting and self._admit(self.waiting.peek(), output):
            pass
        self.finished_seq_ids.clear()
        return output
