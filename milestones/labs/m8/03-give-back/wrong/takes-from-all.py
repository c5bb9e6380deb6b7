class SpeculativeScheduler:
    def advance(self, output: SchedulerOutput) -> None:
        super().advance(output)
        most = max(output.num_drafts.values(), default=0)
        for seq in output.scheduled_seqs:
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens -= most
