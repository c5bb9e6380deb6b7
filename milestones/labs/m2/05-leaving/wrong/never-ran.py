class Scheduler:
    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        heapq.heappush(self.free_slots, seq.block_ids.pop())
        self.num_running_seqs -= 1
        self.finished_seq_ids.append(seq.seq_id)
        seq.transition(status)
