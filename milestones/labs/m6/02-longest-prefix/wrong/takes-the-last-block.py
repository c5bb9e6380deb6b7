class KVCacheManager:
    def _take_cached(self, seq: Sequence) -> None:
        chain, block_ids, parent = self._chains[seq], list[int](), NULL_BLOCK
        for place in range(seq.get_len() // self.block_size):
            found = self.pool.get_cached_block(chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt)
            if found is None:
                break
            block_ids.append(found)
            parent = found
        self.pool.touch(block_ids)
        seq.block_ids = block_ids
        self._num_cached[seq] = len(block_ids)
        seq.num_computed_tokens = len(block_ids) * self.block_size
