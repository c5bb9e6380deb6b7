class Scheduler:
    def _chunk(self, num_tokens: int, left: int) -> int:
        if self.chunks:
            return min(num_tokens, self.largest_chunk)
        return num_tokens if num_tokens <= left else 0
