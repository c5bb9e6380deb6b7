class Penalties:
    def apply(self, logits: Tensor) -> Tensor:
        for i in range(len(self.rows)):
            row, params = self.rows[i], self.rows[i].params
            row.count_tokens()
            for token, count in row.token_counts.items():
                z = logits[i, token].item()
                z = z / params.repetition_penalty if z > 0 else z * params.repetition_penalty
                logits[i, token] = z - count * params.frequency_penalty - bool(count) * params.presence_penalty
        return logits
