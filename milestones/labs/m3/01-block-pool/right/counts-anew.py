class BlockPool:
    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        def take() -> Iterator[int]:
            block = after
            while True:
                block = self._choose(block)
                self._refs[block] += 1
                self._unlink(block)
                self.num_free -= 1
                yield block

        if self.num_free - count < 0:
            raise ValueError(f"count must be at most the {self.num_free} free blocks, got {count}")
        return [block for _, block in zip(range(count), take(), strict=False)]

    def touch(self, block_ids: Iterable[int]) -> None:
        for block in block_ids:
            if block not in range(1, len(self._refs)) or not self._refs[block]:
                raise ValueError(f"block_id {block} is free: no sequence shares it")
            self._refs[block] += 1
        self.num_shared = sum(count >= 2 for count in self._refs)

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        for block in block_ids:
            match self._refs[block]:
                case 0:
                    raise ValueError(f"block_id {block} is free already")
                case 1:
                    self._put_back(block)
                    self.num_free += 1
                case 2:
                    self.num_shared -= 1
            self._refs[block] -= 1
