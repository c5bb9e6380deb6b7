class Scheduler:
    def _end_prefills(self, request: Request, wants: Wants, output: SchedulerOutput) -> None:
        for seq, num_tokens in wants:
            if (
                seq.status is RUNNING
                and in_prefill(seq)
                and seq.num_computed_tokens + num_tokens >= seq.get_prompt_len()
            ):
                self._fork_siblings(request, seq, self.max_num_seqs - len(self.running), output)
