class BlockPool:
    def may_write(self, block_id: int) -> bool:
        return self._refs[block_id] == 1
