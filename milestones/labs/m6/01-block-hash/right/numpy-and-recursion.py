class HashChain:
    def block_hash(self, place: int) -> bytes:
        if place + 1 == len(self._hashes):
            before = self._hashes[-1]
            self._hashes.append(self.digest(before + array("q", self.tokens(place)).tobytes()))
        elif place + 1 > len(self._hashes):
            self.block_hash(place - 1)
            return self.block_hash(place)
        return self._hashes[place + 1]

    def tokens(self, place: int) -> Sequence[int]:
        import numpy as np

        known = np.concatenate([self.data.prompt_token_ids, self.data.output_token_ids]).astype(np.int64)
        return known[: (place + 1) * self.block_size].reshape(-1, self.block_size)[place]
