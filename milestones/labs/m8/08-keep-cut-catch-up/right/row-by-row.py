class EagleProposer(Proposer):
    def read(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> None:
        rows_left, late = list(hidden), []
        for seq, num in zip(seqs, nums, strict=True):
            mine, rows_left = rows_left[:num], rows_left[num:]
            first = seq.num_computed_tokens
            held, rows = self._held.get(seq.seq_id, (first, hidden[:0]))
            kept = list(rows)
            while len(kept) > max(0, first - held + 1):
                kept.pop()
            if held + len(kept) != first + 1:
                held, kept = first, [torch.zeros_like(hidden[0])]
            self._held[seq.seq_id] = held, torch.stack(kept + mine)
            length = seq.get_len()
            if seq.get_last_token_id() == UNKNOWN:
                length -= 1
            end = first + num if first + num < length else length
            if held + FEW < end:
                late.append((seq, end))
        if late:
            self._catch_up(late)
