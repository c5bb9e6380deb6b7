class Scheduler:
    def _end_prefills(self, request: Request, wants: Wants, output: SchedulerOutput) -> None:
        for seq, num_tokens in wants:
            ends = in_prefill(seq)
            if ends and seq.status is RUNNING:
                self._fork_siblings(request, seq, self.max_num_seqs - sum(map(rows_claimed, self.running)), output)
