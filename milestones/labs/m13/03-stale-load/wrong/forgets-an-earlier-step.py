class OffloadingManager:
    def add_moves(self, output, pool):
        output.blocks_to_swap_out += [(block, host) for host, (block, _) in self._stores.items()]
        for block, (host, key) in self._loads.items():
            if pool.hash_of(block) == key:
                output.blocks_to_swap_in.append((host, block))
        if self.secondary is not None:
            self._moving = {host: key for host, (_, key) in self._stores.items()}
        self._stores, self._loads, self._sources = {}, {}, set()
