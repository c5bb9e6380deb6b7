class Scheduler:
    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        was_running = seq.status is SequenceStatus.RUNNING
        self._end(seq, status)
        if was_running and not request.has(SequenceStatus.RUNNING):
            self.running.remove(request)
        if request.is_finished():
            self.waiting.remove(request)
