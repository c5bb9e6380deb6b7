class InputBatch:
    def advance(self, inputs: StepInputs, token_ids: np.ndarray) -> None:
        rows = inputs.rows
        self.num_computed[: len(rows)] += inputs.num_new
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1
