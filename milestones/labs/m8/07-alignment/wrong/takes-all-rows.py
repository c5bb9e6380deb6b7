class EagleProposer(Proposer):
    def _take(self, ends: list[tuple[Sequence, int]]) -> tuple[list[list[int]], list[int], torch.Tensor]:
        known, starts, before = [], [], []
        nothing = torch.zeros(1, self.head.decoder_spec.hidden_size, dtype=self.dtype, device=self.device)
        for seq, end in ends:
            held, rows = self._held.get(seq.seq_id, (end, nothing))
            if not held < end <= held + len(rows):
                held, rows = end - 1, nothing
            known.append(tokens_between(seq, held, end))
            starts.append(held)
            before.append(rows)
            self._held[seq.seq_id] = end, rows[:0]
        return known, starts, torch.cat(before)
