class Pooler:
    def add(self, seq, rows):
        total = rows.sum(dim=0, dtype=torch.float32)
        if seq in self._sums:
            total = total + self._sums[seq]
        self._sums[seq] = total
        return total

    def _mean(self, seq, total):
        del self._sums[seq]
        return total / seq.get_prompt_len()
