class BlockPool:
    def touch(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            refs = self._refs[block_id]
            if refs == 0 and block_id not in self._cached:
                raise ValueError(f"block_id {block_id} is free, and nothing is known of what it holds")
            if refs == 0:
                self.num_free -= 1
                self._unlink(block_id)
            elif refs == 1:
                self.num_shared += 1
            self._refs[block_id] = refs + 1

    def _choose(self, after: int) -> int:
        neighbour, first = after + 1, self._next[NULL_BLOCK]
        if after != NULL_BLOCK and neighbour <= self.num_blocks and self._refs[neighbour] == 0:
            if neighbour not in self._cached:
                return neighbour
        if first in self._cached:
            self._evict(first)
        return first

    def _evict(self, block_id: int) -> None:
        if block_id in self._cached:
            self.num_evicted += 1
            self._by_hash.pop(self._cached.pop(block_id).block_hash)

    def _put_back(self, block_id: int) -> None:
        if self.enable_caching and block_id not in self._cached:
            self._link(block_id, behind=NULL_BLOCK)
        else:
            self._link(block_id, behind=self._prev[NULL_BLOCK])
