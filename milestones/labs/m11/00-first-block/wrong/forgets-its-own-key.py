class KVCacheGroups:
    def first_block(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window) // self.block_size
