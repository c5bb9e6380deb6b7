class Scheduler:
    def _chunk(self, num_tokens: int, left: int) -> int:
        return min(num_tokens, left, self.largest_chunk) if self.chunks else (0, num_tokens)[num_tokens <= left]

    def _admit_chunk(
        self, request: Request, seq: Sequence, num_tokens: int, chunk: int, output: SchedulerOutput
    ) -> bool:
        size, at = self.kv.block_size, seq.num_computed_tokens
        blocks = {position // size for position in range(at + chunk, at + num_tokens)}
        blocks -= {(at + chunk - 1) // size} if at + chunk else set()  # the chunk's last block is begun

        def refusals():
            yield num_tokens > 0 == chunk
            yield num_tokens > chunk and not self.num_partial < self.max_num_partial_prefills
            yield not self._grant([(seq, chunk)], output, sum((self._reserve(request), self.owed_blocks, len(blocks))))

        return not any(refusals())
