class Scheduler:
    def _end_prefills(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> None:
        ending = [
            seq
            for seq, num_tokens in seq_tokens
            if seq.status is RUNNING
            and in_prefill(seq)
            and not seq.num_computed_tokens + num_tokens < seq.get_prompt_len()
        ]
        rows_left = self.max_num_seqs - sum(rows_claimed(other) for other in self.running)
        for seq in ending:
            rows_left -= self._fork_siblings(request, seq, rows_left, output)

    def _fork_siblings(self, request: Request, seq: Sequence, rows_left: int, output: SchedulerOutput) -> int:
        from itertools import islice

        fresh = (s for s in request.get_seqs(WAITING) if seq.get_output_len() == 0 == s.get_output_len())
        pairs = [(seq, child) for child in islice(fresh, max(rows_left, 0))]
        for parent, child in reversed(pairs):  # the blocks are the same in any order
            child.transition(RUNNING)
            self.kv.fork(parent, child, parent.get_prompt_len())
        output.forks.extend(pairs)
        (self.lines.enter_waiting if request.has(WAITING) else self.waiting.remove)(request)
        return len(pairs)
