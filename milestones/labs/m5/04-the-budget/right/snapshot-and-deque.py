class Scheduler:
    def schedule(self) -> SchedulerOutput:
        from collections import deque

        output = SchedulerOutput()
        self._prefills = deque()
        self.num_partial = self.owed_blocks = 0
        waits = []
        for request in tuple(self.running):
            if request not in self.running or self._decode_in_place(request, output):
                continue
            groups = tokens_to_compute(request, request.get_seqs(RUNNING))
            waits += [self._decode(request, group, output) for group in groups if is_decode(group)]
            self._prefills.extend((request, group) for group in groups if not is_decode(group))
        for request, group, share in list(share_out(self._prefills, self._left(output), self.prompt_cap)):
            waits.append(self._prefill(request, group, output, share))
        came = None if any(waits) or not (self.waiting or self.swapped) else self._let_in(output)
        if self.prompt_cap is None:
            for request, group in self._prefills:
                self._end_prefills(request, top_up(group, output, self.kv, self._left(output)), output)
        if came is False and self.running and not output.scheduled_seqs:
            self._preempt(self.running[-1], self.running[-1].get_seqs(RUNNING), output)
        output.finished_seq_ids += self.finished_seq_ids
        output.stale_seq_ids += self._stale_seq_ids
        for news in (self.finished_seq_ids, self._stale_seq_ids):
            news.clear()
        return output
