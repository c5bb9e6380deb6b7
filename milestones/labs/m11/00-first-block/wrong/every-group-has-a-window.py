class KVCacheGroups:
    def first_block(self, group: int, position: int) -> int:
        return max(0, position - self.windows[group] + 1) // self.block_size
