class Scheduler:
    def _end_prefills(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> None:
        for seq, num_tokens in seq_tokens:
            ends = in_prefill(seq)
            if ends and seq.status is RUNNING:
                self._fork_siblings(request, seq, self.max_num_seqs - sum(map(rows_claimed, self.running)), output)
