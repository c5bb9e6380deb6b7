class SpeculativeScheduler:
    def advance(self, output: SchedulerOutput) -> None:
        super().advance(output)
        for seq in output.scheduled_seqs:
            seq.num_computed_tokens -= output.num_drafts.get(seq.seq_id, 0)
