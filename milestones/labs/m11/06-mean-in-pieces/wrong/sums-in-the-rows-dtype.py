class Pooler:
    def add(self, seq, rows):
        before = self._sums.pop(seq, None)
        total = rows.sum(dim=0)
        if before is not None and seq.num_computed_tokens:
            total = total + before
        self._sums[seq] = total
        return total

    def _mean(self, seq, total):
        del self._sums[seq]
        return total.float() / seq.get_prompt_len()
