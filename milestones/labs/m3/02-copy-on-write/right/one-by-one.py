class KVCacheManager:
    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        child.num_computed_tokens, child.block_ids = num_tokens, []
        for block, _ in zip(parent.block_ids, range(0, num_tokens, self.block_size), strict=False):
            self.pool.touch([block])
            child.block_ids.append(block)

    def allocate_slots(self, seq_tokens: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        if self.pool.num_free - self._blocks_needed(seq_tokens) < keep_free:
            return None
        copies: dict[int, tuple[int, int]] = {}
        for place, (seq, _) in enumerate(seq_tokens):
            at = seq.num_computed_tokens // self.block_size
            for block in seq.block_ids[at : at + 1]:
                if self.pool.refs(block) > 1:
                    (seq.block_ids[at],) = self.pool.get_new_blocks(1, after=block)
                    self.pool.free_blocks([block])
                    copies[place] = block, seq.block_ids[at]
        for seq, num_tokens in seq_tokens:
            while len(seq.block_ids) * self.block_size < seq.num_computed_tokens + num_tokens:
                seq.block_ids += self.pool.get_new_blocks(1, after=[0, *seq.block_ids][-1])
        return list(copies.values())
