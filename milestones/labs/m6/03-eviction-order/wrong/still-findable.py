class BlockPool:
    def _choose(self, after: int) -> int:
        neighbour = after + 1
        is_free = after != NULL_BLOCK and neighbour <= self.num_blocks and self._refs[neighbour] == 0
        return neighbour if is_free and neighbour not in self._cached else self._next[NULL_BLOCK]
