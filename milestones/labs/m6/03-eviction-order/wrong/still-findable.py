class CachedBlockPool:
    def _choose(self, after: int) -> int:
        block_id = super()._choose(after)
        return self._next[NULL_BLOCK] if block_id in self._cached else block_id
