class KVCacheManager:
    def _take_cached(self, seq: Sequence) -> None:
        chain, seq.block_ids = self._chains[seq], []
        while (len(seq.block_ids) + 1) * self.block_size < seq.get_len():
            place = len(seq.block_ids)
            before = seq.block_ids[-1] if seq.block_ids else NULL_BLOCK
            key = chain.block_hash(place), before, list(chain.tokens(place)), chain.cache_salt
            if (block_id := self.pool.get_cached_block(*key)) is None:
                break
            seq.block_ids.append(block_id)
        for block_id in reversed(seq.block_ids):
            self.pool.touch((block_id,))
        self._num_cached[seq] = place = len(seq.block_ids)
        seq.num_computed_tokens = self.block_size * place
