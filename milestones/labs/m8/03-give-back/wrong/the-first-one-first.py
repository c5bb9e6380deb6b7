class DraftTokens:
    def give_back(self, seq: Sequence) -> None:
        num_needed = self.kv.blocks_for(seq.get_len())
        self.kv.pool.free_blocks(seq.block_ids[num_needed:])
        del seq.block_ids[num_needed:]
