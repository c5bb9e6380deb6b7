class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=self.finished_seq_ids, stale_seq_ids=self._stale_seq_ids)
        self.num_partial = self.owed_blocks = 0
        must_wait, place, self._prefills = False, 0, []
        while place < len(self.running):
            request = self.running[place]
            if not self._decode_in_place(request, output):
                for group in tokens_to_compute(request, request.get_seqs(RUNNING)):
                    if is_decode(group):
                        must_wait = must_wait or self._decode(request, group, output)
                    else:
                        self._prefills.append((request, group))
            place += 1
        for request, group, share in share_out(self._prefills, self._left(output), self.prompt_cap):
            must_wait = must_wait or self._prefill(request, group, output, share)
        if not must_wait and (self.swapped or self.waiting):
            moved = self._let_in(output)
            if output.is_empty and not moved and self.running:
                newest = self.running[-1]
                self._preempt(newest, newest.get_seqs(RUNNING), output)
        for request, group in self._prefills if self.prompt_cap is None else ():
            self._end_prefills(request, top_up(group, output, self.kv, self._left(output)), output)
        self.finished_seq_ids, self._stale_seq_ids = [], []
        return output
