class EagleProposer(Proposer):
    def _take(self, ends: list[tuple[Sequence, int]]) -> tuple[list[list[int]], list[int], torch.Tensor]:
        known: list[list[int]] = []
        starts: list[int] = []
        before: list[torch.Tensor] = []
        for seq, end in ends:
            held, rows = self._held.get(seq.seq_id, (end, torch.empty(0)))
            of_position = {held - 1 + place: row for place, row in enumerate(rows)}
            wanted = range(held, end)
            if not wanted or any(position - 1 not in of_position for position in wanted):
                size = self.head.decoder_spec.hidden_size
                wanted = range(end - 1, end)
                of_position = {end - 2: torch.zeros(size, dtype=self.dtype, device=self.device)}
            known.append(seq.get_token_ids()[wanted.start : end])
            starts.append(wanted.start)
            before += [of_position[position - 1] for position in wanted]
            left = [row for position, row in sorted(of_position.items()) if position >= end - 1]
            self._held[seq.seq_id] = end, torch.stack(left) if left else torch.stack(before)[:0]
        return known, starts, torch.stack(before)
