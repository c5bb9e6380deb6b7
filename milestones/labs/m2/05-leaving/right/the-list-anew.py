class Scheduler:
    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        if seq.is_finished():
            return
        self._end(seq, status)
        self.running = [other for other in self.running if other.has(SequenceStatus.RUNNING)]
        if all(sibling.is_finished() for sibling in request.sequences.values()):
            self.waiting.remove(request)

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        ran = seq.status is SequenceStatus.RUNNING
        seq.transition(status)
        if ran:
            self.finished_seq_ids.append(seq.seq_id)
            self.num_running_seqs -= 1
            self.free_slots = sorted([*self.free_slots, *seq.block_ids])
            seq.block_ids = []

    def abort(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running = [other for other in self.running if other is not request]
        for seq in [seq for seq in request.get_seqs() if not seq.is_finished()]:
            self._end(seq, SequenceStatus.FINISHED_ABORTED)
