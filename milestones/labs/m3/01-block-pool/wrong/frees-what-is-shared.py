class BlockPool:
    def free_blocks(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if self._refs[block_id] == 0:
                raise ValueError(f"block_id {block_id} is free already")
            self._refs[block_id] -= 1
            self._put_back(block_id)
            self.num_free += 1
