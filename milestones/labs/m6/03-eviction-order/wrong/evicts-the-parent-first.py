class BlockPool:
    def _put_back(self, block_id: int) -> None:
        self._link(block_id, behind=NULL_BLOCK)
