class Scheduler:
    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        match seq.is_finished():
            case False:
                self._end(seq, status)
                statuses = {one.status for one in request.sequences.values()}
                if SequenceStatus.RUNNING not in statuses:
                    self.running[:] = [one for one in self.running if one is not request]
                if all(map(SequenceStatus.is_finished, statuses)):
                    self.waiting.remove(request)

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        if seq.block_ids:
            [slot] = seq.block_ids
            seq.block_ids = []
            self.free_slots = sorted([*self.free_slots, slot])
            self.num_running_seqs -= 1
            self.finished_seq_ids = [*self.finished_seq_ids, seq.seq_id]
        seq.transition(status)

    def abort(self, request: Request) -> None:
        self.waiting.remove(request)
        try:
            self.running.remove(request)
        except ValueError:
            pass
        alive = filter(lambda seq: not seq.is_finished(), reversed(request.get_seqs()))
        for seq in alive:
            self._end(seq, SequenceStatus.FINISHED_ABORTED)
