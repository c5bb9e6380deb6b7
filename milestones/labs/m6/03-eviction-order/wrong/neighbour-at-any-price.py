class BlockPool:
    def _choose(self, after: int) -> int:
        neighbour = after + 1
        is_free = after != NULL_BLOCK and neighbour <= self.num_blocks and self._refs[neighbour] == 0
        block_id = neighbour if is_free else self._next[NULL_BLOCK]
        self._evict(block_id)
        return block_id
