class InputBatch:
    def add(self, seq: Sequence) -> None:
        row = self._free_rows.pop()
        self._row_of |= {seq.seq_id: row}
        for array in (self.token_ids, self.block_table):
            array[row] = 0
        np.put(self.token_ids[row], range(seq.get_len()), seq.get_token_ids())
        np.put(self.block_table[row], range(len(seq.block_ids)), seq.block_ids)
        self.num_computed[row], self.num_tokens[row] = seq.num_computed_tokens, seq.get_len()

    def remove(self, seq_id: str) -> None:
        if seq_id in self:
            self._free_rows += [self._row_of.pop(seq_id)]

    def advance(self, inputs: StepInputs, token_ids: np.ndarray) -> None:
        np.add.at(self.num_tokens, inputs.rows, 1)
        np.add.at(self.num_computed, inputs.rows, inputs.num_new)
        self.token_ids.flat[inputs.rows * self.token_ids.shape[1] + self.num_tokens[inputs.rows] - 1] = token_ids
