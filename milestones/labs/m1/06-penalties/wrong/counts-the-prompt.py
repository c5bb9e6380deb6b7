class Penalties(LogitsProcessor):
    def apply(self, logits: Tensor) -> Tensor:
        ledgers = [row.token_counts for row in self.rows if row.token_counts is not None]
        for row, ledger in zip(self.rows, ledgers, strict=True):
            ledger.catch_up(row.output_token_ids)
        positions = np.repeat(np.arange(len(ledgers)), [ledger.size for ledger in ledgers])
        token_ids = np.concatenate([ledger.token_ids for ledger in ledgers])
        counts = np.concatenate([ledger.counts for ledger in ledgers])
        repetition, frequency, presence = self._settings[positions].T
        at = (_to(logits, positions), _to(logits, token_ids))
        factor, drop = _to(logits, repetition), _to(logits, frequency * counts + presence)
        values = logits[at]
        logits[at] = torch.where(values > 0, values / factor, values * factor) - drop
        return logits
