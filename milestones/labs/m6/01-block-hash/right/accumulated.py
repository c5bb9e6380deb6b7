class HashChain:
    def block_hash(self, place: int) -> bytes:
        from itertools import accumulate

        missing = range(len(self._hashes) - 1, place + 1)
        contents = (array("q", self.tokens(block)).tobytes() for block in missing)
        *_, last = self._hashes
        grown = accumulate(contents, lambda before, ids: self.digest(before + ids), initial=last)
        self._hashes[-1:] = grown
        return self._hashes[place + 1]

    def tokens(self, place: int) -> Sequence[int]:
        from itertools import chain, islice

        both = chain(self.data.prompt_token_ids, self.data.output_token_ids)
        return list(islice(both, place * self.block_size, (place + 1) * self.block_size))
