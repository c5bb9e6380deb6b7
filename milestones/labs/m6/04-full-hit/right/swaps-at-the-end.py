class BlockPool:
    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        """A new table first; references change hands when it is known."""
        made = table[:num_cached]
        for place in range(num_cached, num_full):
            content = chain.block_hash(place), [NULL_BLOCK, *made][-1], chain.tokens(place), chain.cache_salt
            block = self.get_cached_block(*content)
            if block is None and self.cache_block(table[place], *content):
                block = table[place]
            if block is None:
                break
            made.append(block)
        taken = [(new, old) for new, old in zip(made, table, strict=False) if new != old]
        self.touch(new for new, _ in taken)
        self.free_blocks([old for _, old in taken])
        table[: len(made)] = made
        return len(made), len(taken) > 0

    def may_write(self, block_id: int) -> bool:
        return self._refs[block_id] == 1 and not self._cached.get(block_id)

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        return num_writers if block_id in self._cached else num_writers - int(num_writers == self._refs[block_id])
