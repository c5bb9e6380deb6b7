class InputBatch:
    def advance(self, inputs: StepInputs, token_ids: np.ndarray) -> None:
        rows = inputs.rows
        self.num_computed[rows] += 1
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1
