class EagleProposer(Proposer):
    def read(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> None:
        at, behind = 0, []
        for seq, num in zip(seqs, nums, strict=True):
            start, new = seq.num_computed_tokens, hidden[at : at + num]
            held, rows = self._held.get(seq.seq_id, (start, new[:0]))
            if not held <= start + 1 <= held + len(rows):
                held, rows = start, new.new_zeros(1, new.shape[1])
            self._held[seq.seq_id] = held, torch.cat([rows[: start + 1 - held], new])
            at += num
            end = min(start + num, seq.get_len() - (seq.get_last_token_id() == UNKNOWN))
            if end > FEW:
                behind.append((seq, end))
        if behind:
            self._catch_up(behind)
