class SpeculativeScheduler:
    def advance(self, output: SchedulerOutput) -> None:
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens += num_tokens - output.num_drafts.get(seq.seq_id, 0)

    def give_back(self, seq: Sequence) -> None:
        while (len(seq.block_ids) - 1) * self.kv.block_size >= seq.get_len():
            self.kv.pool.free_blocks([seq.block_ids.pop()])
