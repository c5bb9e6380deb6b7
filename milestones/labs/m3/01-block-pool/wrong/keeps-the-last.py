class BlockPool:
    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        if count >= self.num_free:
            raise ValueError(f"count must be at most the {self.num_free} free blocks, got {count}")
        taken: list[int] = []
        for _ in range(count):
            after = self._choose(after)
            self._unlink(after)
            self._refs[after] = 1
            taken.append(after)
        self.num_free -= count
        return taken
