class Scheduler:
    def _end_prefills(self, request: Request, seq_tokens: SeqTokens, output: SchedulerOutput) -> None:
        for seq, num_tokens in seq_tokens:
            if seq.status is not RUNNING:
                continue
            before = seq.num_computed_tokens
            if before < seq.get_prompt_len() <= before + num_tokens:
                rows_left = self.max_num_seqs
                for other in self.running:
                    rows_left -= rows_claimed(other)
                self._fork_siblings(request, seq, rows_left, output)

    def _fork_siblings(self, request: Request, seq: Sequence, rows_left: int, output: SchedulerOutput) -> int:
        forked = 0
        for child in request.get_seqs():
            fresh = child.status is WAITING and not child.get_output_len()
            if forked == rows_left or seq.get_output_len() or not fresh:
                continue
            child.transition(RUNNING)
            self.kv.fork(seq, child, seq.get_prompt_len())
            output.forks.append((seq, child))
            forked += 1
        self.waiting.remove(request)
        if request.has(WAITING):
            self.lines.enter_waiting(request)
        return forked
