class HashChain:
    def block_hash(self, place: int) -> bytes:
        import struct

        for block in range(len(self._hashes) - 1, place + 1):
            ids = struct.pack(f"={self.block_size}q", *self.tokens(block))
            self._hashes += [self.digest(b"".join((self._hashes[block], ids)))]
        return self._hashes[1:][place]

    def tokens(self, place: int) -> Sequence[int]:
        everything = [*self.data.prompt_token_ids, *self.data.output_token_ids]
        return tuple(everything[place * self.block_size :][: self.block_size])
