class Scheduler:
    def _chunk(self, num_tokens: int, left: int) -> int:
        if not self.chunks:
            return num_tokens * (num_tokens <= left)
        return sorted([self.largest_chunk, left, num_tokens])[0]

    def _admit_chunk(
        self, request: Request, seq: Sequence, num_tokens: int, chunk: int, output: SchedulerOutput
    ) -> bool:
        lasts = num_tokens > chunk
        if num_tokens and not chunk:
            return False
        if lasts and self.max_num_partial_prefills <= self.num_partial:
            return False
        keep = self.owed_blocks + self._reserve(request)
        begun = seq.num_computed_tokens + chunk
        for position in range(begun, begun + num_tokens - chunk):
            keep += position % self.kv.block_size == 0  # the first token of another block
        return self._grant([(seq, chunk)], output, keep)
