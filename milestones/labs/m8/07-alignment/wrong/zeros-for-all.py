class EagleProposer(Proposer):
    def _take(self, ends: list[tuple[Sequence, int]]) -> tuple[list[list[int]], list[int], torch.Tensor]:
        known, starts, before = [], [], []
        for seq, end in ends:
            nothing = torch.zeros(end, self.head.decoder_spec.hidden_size, dtype=self.dtype, device=self.device)
            held, rows = self._held.get(seq.seq_id, (0, nothing))
            known.append(tokens_between(seq, held, end))
            starts.append(held)
            before.append(rows[: end - held])
            self._held[seq.seq_id] = end, rows[end - held :]
        return known, starts, torch.cat(before)
