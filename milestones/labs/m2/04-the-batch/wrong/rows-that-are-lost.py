class InputBatch:
    def remove(self, seq_id: str) -> None:
        self._row_of.pop(seq_id, None)
