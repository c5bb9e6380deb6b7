class DraftTokens:
    def take_back(self, output: SchedulerOutput) -> None:
        most = max(output.num_drafts.values(), default=0)
        for seq in output.scheduled_seqs:
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens -= most
