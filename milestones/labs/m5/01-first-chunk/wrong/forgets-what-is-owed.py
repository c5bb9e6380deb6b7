class Scheduler:
    def _admit_chunk(
        self, request: Request, seq: Sequence, num_tokens: int, chunk: int, output: SchedulerOutput
    ) -> bool:
        if chunk == 0 < num_tokens:
            return False
        if chunk < num_tokens and self.num_partial >= self.max_num_partial_prefills:
            return False
        computed = seq.num_computed_tokens
        rest = self.kv.blocks_for(computed + num_tokens) - self.kv.blocks_for(computed + chunk)
        return self._grant([(seq, chunk)], output, rest)
