class BlockPool:
    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        taken: list[int] = []
        for _ in range(count):
            if self.num_free == 0:
                raise ValueError(f"count must be at most the {len(taken)} free blocks, got {count}")
            after = self._choose(after)
            self._unlink(after)
            self._refs[after] = 1
            self.num_free -= 1
            taken.append(after)
        return taken
