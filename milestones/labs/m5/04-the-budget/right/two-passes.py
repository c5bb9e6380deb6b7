class Scheduler:
    def schedule(self) -> SchedulerOutput:
        """Sorts first, serves later; the lists are copied into the step and then emptied in place."""
        output = SchedulerOutput()
        output.finished_seq_ids = list(self.finished_seq_ids)
        output.stale_seq_ids = list(self._stale_seq_ids)
        self.num_partial, self.owed_blocks, self._prefills = 0, 0, []
        waits, place = [], 0
        while place < len(self.running):
            request = self.running[place]
            place += 1
            if self._decode_in_place(request, output):
                continue
            for group in tokens_to_compute(request, request.get_seqs(RUNNING)):
                if not is_decode(group):
                    self._prefills = [*self._prefills, (request, group)]
                    continue
                waits.append(self._decode(request, group, output))
        for request, group, share in list(share_out(self._prefills, self._left(output), self.prompt_cap)):
            waits.append(self._prefill(request, group, output, share))
        others = bool(self.swapped) or bool(self.waiting)
        if others and not any(waits) and not self._let_in(output) and output.is_empty and self.running:
            self._preempt(self.running[-1], self.running[-1].get_seqs(RUNNING), output)
        if self.prompt_cap is None:
            for request, group in self._prefills:
                more = top_up(group, output, self.kv, self._left(output))
                self._end_prefills(request, more, output)
        for told in (self.finished_seq_ids, self._stale_seq_ids):
            told.clear()
        return output
