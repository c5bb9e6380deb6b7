class BlockPool:
    def touch(self, block_ids: Iterable[int]) -> None:
        blocks = list(block_ids)
        for block in blocks:
            if not self._refs[block] and block not in self._cached:
                raise ValueError(f"cannot share: block_id {block} is free, and holds nothing")
        for block in blocks:
            if not self._refs[block]:
                self._unlink(block)
                self.num_free -= 1
            self._refs[block] += 1
            self.num_shared += self._refs[block] == 2

    def _choose(self, after: int) -> int:
        first, neighbour = next(self.get_all_free_blocks()), after + 1
        is_free = after != NULL_BLOCK and neighbour <= self.num_blocks and self._refs[neighbour] == 0
        chosen = neighbour if is_free and neighbour not in self._cached else first
        if chosen in self._cached:
            self._evict(chosen)
        return chosen

    def _evict(self, block_id: int) -> None:
        before = len(self._cached)
        self._cached = {block: held for block, held in self._cached.items() if block != block_id}
        self._by_hash = {block_hash: block for block_hash, block in self._by_hash.items() if block != block_id}
        self.num_evicted += before - len(self._cached)

    def _put_back(self, block_id: int) -> None:
        if block_id in self._cached or not self.enable_caching:
            self._link(block_id, behind=self._prev[NULL_BLOCK])
            return
        self._link(block_id, behind=NULL_BLOCK)
