class DraftTokens:
    def give_back(self, seq: Sequence) -> None:
        num_needed = self.kv.blocks_for(seq.num_computed_tokens)
        self.kv.pool.free_blocks(reversed(seq.block_ids[num_needed:]))
        del seq.block_ids[num_needed:]
