class KVCacheManager:
    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        names = iter(parent.block_ids)
        child.block_ids = [next(names) for _ in range(self.blocks_for(num_tokens))]
        for block_id in child.block_ids:
            self.pool.touch((block_id,))
        child.num_computed_tokens = num_tokens

    def allocate_slots(self, seq_tokens: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        if self.pool.num_free - self._blocks_needed(seq_tokens) < keep_free:
            return None
        pairs = dict[Sequence, tuple[int, int]]()
        for seq, num_tokens in seq_tokens:
            place = seq.num_computed_tokens // self.block_size
            shared = seq.block_ids[place : place + 1]
            if shared and self.pool.refs(shared[0]) != 1:
                seq.block_ids[place] = self.pool.get_new_blocks(1, after=shared[0])[0]
                self.pool.free_blocks(shared)
                pairs[seq] = (shared[0], seq.block_ids[place])
        for seq, num_tokens in seq_tokens:
            while len(seq.block_ids) * self.block_size < seq.num_computed_tokens + num_tokens:
                seq.block_ids.extend(self.pool.get_new_blocks(1, (seq.block_ids or [0])[-1]))
        return list(pairs.values())
