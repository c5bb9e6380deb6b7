class KVCacheManager:
    def accept_draft_tokens(self, seq: Sequence, num_accepted: int) -> None:
        for _ in range(num_accepted):
            seq.num_computed_tokens += 1
        while (len(seq.block_ids) - 1) * self.block_size >= seq.get_len():
            self.pool.free_blocks([seq.block_ids.pop()])
