class Scheduler:
    def _end_prefill(self, request: Request, seq: Sequence, room: int, output: SchedulerOutput) -> int:
        children = request.unstarted(request.sampling_params.num_seqs) if seq.get_output_len() == 0 else []
        for child in children:
            self.kv.fork(seq, child, seq.get_prompt_len())
            child.transition(RUNNING)
            output.forks.append((seq, child))
        if request.has_waiting():
            self._enter_waiting(request)
        else:
            self.waiting.remove(request)
        return len(children)
