class KVCacheManager:
    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        child.block_ids = parent.block_ids
        child.num_computed_tokens = num_tokens
        self.pool.touch(child.block_ids)
