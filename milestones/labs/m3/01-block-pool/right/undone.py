class BlockPool:
    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        def take(left: int, last: int) -> list[int]:
            if left == 0:
                return []
            if not self.num_free:
                raise IndexError
            block_id = self._choose(last)
            before = self._prev[block_id]
            self._unlink(block_id)
            self._refs[block_id] += 1
            self.num_free -= 1
            try:
                return [block_id, *take(left - 1, block_id)]
            except IndexError:  # back to where it was
                self._link(block_id, behind=before)
                self._refs[block_id] -= 1
                self.num_free += 1
                raise

        free = self.num_free
        try:
            return take(count, after)
        except IndexError:
            raise ValueError(f"count must be at most the {free} free blocks, got {count}") from None

    def touch(self, block_ids: Iterable[int]) -> None:
        ids = list(block_ids)
        for block_id in ids:
            if not self._refs[block_id]:
                raise ValueError(f"block_id {block_id} is free: no sequence shares it")
        for block_id in ids:
            self.num_shared += self._refs[block_id] == 1
            self._refs[block_id] += 1

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            left = self._refs[block_id] - 1
            if left < 0:
                raise ValueError(f"block_id {block_id} is free already")
            self._refs[block_id] = left
            match left:
                case 0:
                    self._link(block_id, behind=self._prev[NULL_BLOCK])
                    self.num_free += 1
                case 1:
                    self.num_shared -= 1
