class Penalties:
    def apply(self, logits: Tensor) -> Tensor:
        for place in reversed(range(len(self.rows))):
            row = self.rows[place]
            row.count_tokens()
            seen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
            counts = torch.zeros_like(logits[place])
            for token_id, count in row.token_counts.items():
                seen[token_id], counts[token_id] = True, count
            scale = torch.where(logits[place] > 0, 1 / row.params.repetition_penalty, row.params.repetition_penalty)
            logits[place] *= torch.where(seen, scale, 1.0)
            logits[place] -= counts * row.params.frequency_penalty + counts.sign() * row.params.presence_penalty
        return logits
