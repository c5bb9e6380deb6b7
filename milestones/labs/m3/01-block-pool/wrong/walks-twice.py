class BlockPool:
    def free_blocks(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if self._refs[block_id] == 0:
                raise ValueError(f"block_id {block_id} is free already")
        for block_id in block_ids:
            self._refs[block_id] -= 1
            if self._refs[block_id] == 0:
                self._put_back(block_id)
                self.num_free += 1
            elif self._refs[block_id] == 1:
                self.num_shared -= 1
