class KVCacheManager:
    def _take_cached(self, seq: Sequence) -> None:
        chain, block_ids, parent = self._chains[seq], list[int](), NULL_BLOCK
        for place in range(seq.get_len() // self.block_size):
            found = self.pool.get_cached_block(chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt)
            if found is None:
                break
            self.pool.touch([found])
            block_ids.append(found)
            parent = found
        if len(block_ids) * self.block_size == seq.get_len():
            block_ids.pop()  # a token has to be left
        seq.block_ids = block_ids
        self._num_cached[seq] = len(block_ids)
        seq.num_computed_tokens = len(block_ids) * self.block_size
