class KVCacheManager:
    def accept_draft_tokens(self, seq: Sequence, num_accepted: int) -> None:
        seq.num_computed_tokens += num_accepted
        num_needed = self.blocks_for(seq.num_computed_tokens)
        self.pool.free_blocks(reversed(seq.block_ids[num_needed:]))
        del seq.block_ids[num_needed:]
