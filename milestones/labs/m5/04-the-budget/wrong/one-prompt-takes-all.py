class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids, stale_seq_ids=self._stale_seq_ids)
        self.num_partial = self.owed_blocks = 0
        must_wait, self._prefills = False, []
        for request in self.running:
            if not self._decode_in_place(request, output):
                for group in tokens_to_compute(request, request.get_seqs(RUNNING)):
                    if is_decode(group):
                        must_wait |= self._decode(request, group, output)
                    else:
                        self._prefills.append((request, group))
        for request, group in self._prefills:
            must_wait |= self._prefill(request, group, output)
        if not must_wait and (self.swapped or self.waiting):
            moved = self._let_in(output)
            if output.is_empty and not moved and self.running:
                newest = self.running[-1]
                self._preempt(newest, newest.get_seqs(RUNNING), output)
        for request, group in self._prefills if self.prompt_cap is None else ():
            self._end_prefills(request, top_up(group, output, self.kv, self._left(output)), output)
        self.finished_seq_ids, self._stale_seq_ids = [], []
        return output
