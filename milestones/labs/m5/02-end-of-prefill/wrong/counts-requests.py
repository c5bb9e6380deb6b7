class Scheduler:
    def _end_prefills(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> None:
        for seq, num_tokens in seq_tokens:
            if (
                seq.status is RUNNING
                and in_prefill(seq)
                and seq.num_computed_tokens + num_tokens >= seq.get_prompt_len()
            ):
                self._fork_siblings(request, seq, self.max_num_seqs - len(self.running), output)
