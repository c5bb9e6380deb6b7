class BlockPool:
    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        before, place = list(table), num_cached
        parent = ([NULL_BLOCK, *table])[num_cached]
        while place < num_full:
            content = chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt
            parent = self.get_cached_block(*content)
            if parent is None:
                parent = table[place]
                if not self.cache_block(parent, *content):
                    break
            if parent != table[place]:
                self.free_blocks([table[place]])
                self.touch([parent])
                table[place] = parent
            place += 1
        return place, table != before

    def may_write(self, block_id: int) -> bool:
        return block_id not in self._cached and self._refs[block_id] == 1

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        if block_id in self._cached or num_writers < self._refs[block_id]:
            return num_writers
        return num_writers - 1
