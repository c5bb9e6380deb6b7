class Scheduler:
    def _admit_chunk(
        self, request: Request, seq: Sequence, num_tokens: int, chunk: int, output: SchedulerOutput
    ) -> bool:
        if chunk == 0 < num_tokens:
            return False
        if chunk < num_tokens and self.num_partial >= self.max_num_partial_prefills:
            return False
        return self._grant([(seq, chunk)], output, self._reserve(request) + self.owed_blocks)
