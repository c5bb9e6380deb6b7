class HashChain:
    def tokens(self, place: int) -> Sequence[int]:
        start = place * self.block_size
        return self.data.prompt_token_ids[start : start + self.block_size]
