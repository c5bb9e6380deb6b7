class InputBatch:
    def add(self, seq: Sequence) -> None:
        row = self._row_of[seq.seq_id] = self._free_rows.pop()
        num_prompt, num_tokens = seq.get_prompt_len(), seq.get_len()
        self.token_ids[row, :num_prompt] = seq.data.prompt_token_ids
        self.token_ids[row, num_prompt:num_tokens] = seq.data.output_token_ids
        self.block_table[row, : len(seq.block_ids)] = seq.block_ids
        self.num_tokens[row] = num_tokens
        if seq.num_computed_tokens:
            self.num_computed[row] = seq.num_computed_tokens
