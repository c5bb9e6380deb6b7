class CachedBlockPool:
    def _choose(self, after: int) -> int:
        block_id = super()._choose(after)
        self._evict(block_id)
        return block_id
