class DraftTokens:
    def take_back(self, output: SchedulerOutput) -> None:
        seqs = {seq.seq_id: seq for seq in output.scheduled_seqs}
        for seq_id, count in output.num_drafts.items():
            if seqs[seq_id].status is SequenceStatus.RUNNING:
                seqs[seq_id].num_computed_tokens -= count

    def give_back(self, seq: Sequence) -> None:
        while (len(seq.block_ids) - 1) * self.kv.block_size >= seq.get_len():
            self.kv.pool.free_blocks([seq.block_ids.pop()])
