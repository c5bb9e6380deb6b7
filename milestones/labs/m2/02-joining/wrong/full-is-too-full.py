class Scheduler:
    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        num_tokens = len(request.prompt_token_ids)
        if self.num_running_seqs >= self.max_num_seqs:
            return False
        if output.total_num_scheduled_tokens + num_tokens >= self.max_num_batched_tokens:
            return False
        seq = request.get_seqs(SequenceStatus.WAITING)[0]
        seq.block_ids = [heapq.heappop(self.free_slots)]
        seq.transition(SequenceStatus.RUNNING)
        output.add(seq, num_tokens)
        self.num_running_seqs += 1
        if request not in self.running:
            self.running.append(request)
        if not request.has(SequenceStatus.WAITING):
            self.waiting.pop()
        return True
