class Scheduler:
    def _fork_siblings(self, request: Request, seq: Sequence, rows_left: int, output: SchedulerOutput) -> int:
        children: list[Sequence] = []
        if seq.get_output_len() == 0:
            children = [child for child in request.get_seqs(WAITING) if child.get_output_len() == 0][:rows_left]
        for child in children:
            self.kv.fork(seq, child, seq.get_prompt_len())
            child.data = seq.data
            child.transition(RUNNING)
            output.forks.append((seq, child))
        if request.has(WAITING):
            self.lines.enter_waiting(request)
        else:
            self.waiting.remove(request)
        return len(children)
