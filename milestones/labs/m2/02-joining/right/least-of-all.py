class Scheduler:
    def _key(self, request: Request) -> Key:
        return (self.by_priority and request.priority) + 0, next(self._arrivals)

    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        length = len(request.prompt_token_ids)
        places = self.max_num_seqs - self.num_running_seqs
        room = self.max_num_batched_tokens - output.total_num_scheduled_tokens
        if not (places > 0 and length <= room):
            return False
        waiting = request.get_seqs(SequenceStatus.WAITING)
        output.add(waiting[0], length)
        if len(waiting) == 1:
            self.waiting.pop()
        waiting[0].transition(SequenceStatus.RUNNING)
        slot = min(self.free_slots)
        self.free_slots.remove(slot)
        heapq.heapify(self.free_slots)
        waiting[0].block_ids[:] = [slot]
        self.num_running_seqs += 1
        self.running += [request] if all(other is not request for other in self.running) else []
        return True
