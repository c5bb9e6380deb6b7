class Penalties(LogitsProcessor):
    def apply(self, logits: Tensor) -> Tensor:
        for row, row_logits in zip(self.rows, logits, strict=True):
            row.count_tokens()
            params = row.params
            token_ids = torch.tensor(list(row.token_counts), dtype=torch.int64, device=logits.device)
            counts = torch.tensor(list(row.token_counts.values()), device=logits.device)
            values = row_logits[token_ids]
            values = values - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
            penalty = params.repetition_penalty
            row_logits[token_ids] = torch.where(values > 0, values / penalty, values * penalty)
        return logits
