class BlockPool:
    def touch(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if self._refs[block_id] == 0:
                raise ValueError(f"block_id {block_id} is free: no sequence shares it")
            self._refs[block_id] += 1
