class KVCacheManager:
    def _take_cached(self, seq: Sequence) -> None:
        chain, block_ids = self._chains[seq], list[int]()
        for place in range((seq.get_len() - 1) // self.block_size):
            block_hash, token_ids = chain.block_hash(place), chain.tokens(place)
            found = self.pool.get_cached_block(block_hash, NULL_BLOCK, token_ids, chain.cache_salt)
            if found is None:
                break
            block_ids.append(found)
        self.pool.touch(block_ids)
        seq.block_ids = block_ids
        self._num_cached[seq] = len(block_ids)
        seq.num_computed_tokens = len(block_ids) * self.block_size
