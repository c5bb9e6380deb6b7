class KVCacheManager:
    def _take_cached(self, seq: Sequence) -> None:
        """Hashes first, a generator that goes on until it finds none, and one touch for all."""
        from itertools import takewhile

        chain, most = self._chains[seq], -(-seq.get_len() // self.block_size) - 1
        hashes = [chain.block_hash(place) for place in range(most)]

        def search():
            parent = NULL_BLOCK
            for place, block_hash in enumerate(hashes):
                parent = self.pool.get_cached_block(block_hash, parent, chain.tokens(place), chain.cache_salt)
                yield parent

        blocks = tuple(takewhile(lambda block: block is not None, search()))
        seq.block_ids.extend(blocks)
        self._num_cached.update({seq: len(blocks)})
        seq.num_computed_tokens = self.block_size * len(blocks)
        self.pool.touch(iter(blocks))
