class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids, stale_seq_ids=self._stale_seq_ids)
        self.num_partial = self.owed_blocks = 0
        self._prefills, must_wait, served = [], False, set()
        while request := next((request for request in self.running if request.request_id not in served), None):
            served.add(request.request_id)
            for group in tokens_to_compute(request, request.get_seqs(RUNNING)):
                if is_decode(group):
                    must_wait = self._decode(request, group, output) or must_wait
                else:
                    self._prefills.append((request, group))
        for request, group, share in share_out(self._prefills, self._left(output), self.prompt_cap):
            must_wait = self._prefill(request, group, output, share) or must_wait
        asked = not must_wait and bool(self.swapped or self.waiting)
        moved = asked and self._let_in(output)
        if asked and not moved and output.total_num_scheduled_tokens == 0 and output.is_empty and self.running:
            *_, newest = self.running
            self._preempt(newest, newest.get_seqs(RUNNING), output)
        for request, group in self._prefills:
            if self.prompt_cap is None:
                self._end_prefills(request, top_up(group, output, self.kv, self._left(output)), output)
        self.finished_seq_ids = []
        self._stale_seq_ids = []
        return output
