class HashChain:
    def block_hash(self, place: int) -> bytes:
        while len(self._hashes) <= place + 1:
            token_ids = self.tokens(len(self._hashes) - 1)
            self._hashes.append(self.digest(self._hashes[-1] + array("i", token_ids).tobytes()))
        return self._hashes[place + 1]
