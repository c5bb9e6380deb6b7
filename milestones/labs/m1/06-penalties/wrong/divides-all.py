class Penalties(LogitsProcessor):
    def apply(self, logits: Tensor) -> Tensor:
        for row, row_logits in zip(self.rows, logits, strict=True):
            row.count_tokens()
            params = row.params
            token_ids = torch.tensor(list(row.token_counts), dtype=torch.int64, device=logits.device)
            counts = torch.tensor(list(row.token_counts.values()), device=logits.device)
            values = row_logits[token_ids]
            penalty = params.repetition_penalty
            values = values / penalty
            drop = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
            row_logits[token_ids] = values - drop
        return logits
