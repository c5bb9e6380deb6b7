class PromotingPool:
    def get_cached_block(self, block_hash, parent, token_ids, cache_salt):
        found = self.pool.get_cached_block(block_hash, parent, token_ids, cache_salt)
        if found is not None:
            self.pool.touch([found])
        elif self.pool.num_free and self.offload.find(block_hash, self.pool.hash_of(parent), token_ids) is not None:
            (found,) = self.pool.get_new_blocks(1, after=parent)
            if not self.pool.cache_block(found, block_hash, parent, token_ids, cache_salt):
                self.pool.free_blocks([found])
                return None
            self.promoted.add(found)
        if found is not None:
            self.held.append(found)
        return found
