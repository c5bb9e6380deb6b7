class InputBatch:
    def advance(self, inputs: StepInputs, token_ids: np.ndarray) -> None:
        for row, (num_new, token_id) in enumerate(zip(inputs.num_new, token_ids, strict=True)):
            self.num_computed[row] += num_new
            self.token_ids[row, self.num_tokens[row]] = token_id
            self.num_tokens[row] += 1
