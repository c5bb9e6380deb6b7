class DraftTokens:
    def take_back(self, output: SchedulerOutput) -> None:
        for seq in output.scheduled_seqs:
            seq.num_computed_tokens -= output.num_drafts.get(seq.seq_id, 0)
