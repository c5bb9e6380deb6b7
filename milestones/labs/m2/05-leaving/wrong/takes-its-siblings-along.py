class Scheduler:
    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        if seq.is_finished():
            return
        self._end(seq, status)
        if request in self.running:
            self.running.remove(request)
        self.waiting.remove(request)
