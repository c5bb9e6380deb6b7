class BlockPool:
    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        changed = False
        for place in range(num_cached, num_full):
            block_hash, token_ids = chain.block_hash(place), chain.tokens(place)
            parent = table[place - 1] if place else NULL_BLOCK
            found = self.get_cached_block(block_hash, parent, token_ids, chain.cache_salt)
            if found is None:
                if not self.cache_block(table[place], block_hash, parent, token_ids, chain.cache_salt):
                    return place, changed
            elif found != table[place]:
                self.free_blocks([table[place]])
                table[place] = found
                changed = True
        return max(num_cached, num_full), changed
