class KVCacheManager:
    def allocate_slots(self, seq_tokens: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        if self._blocks_needed(seq_tokens) + keep_free > self.pool.num_free:
            return None
        pairs: BlockPairs = []
        for seq, num_tokens in seq_tokens:
            start, table = seq.num_computed_tokens, seq.block_ids
            first = self.blocks_for(start)
            if first < len(table) and not self.pool.may_write(table[first]):
                shared = table[first]
                table[first] = self.pool.get_new_blocks(1, after=shared)[0]
                self.pool.free_blocks([shared])
                pairs.append((shared, table[first]))
            num_new = self.blocks_for(start + num_tokens) - len(table)
            if num_new > 0:
                table += self.pool.get_new_blocks(num_new, after=table[-1] if table else 0)
        return pairs
