class BlockPool:
    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        for place in range(num_cached, num_full):
            parent = table[place - 1] if place else NULL_BLOCK
            self.cache_block(table[place], chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt)
        return max(num_cached, num_full), False
