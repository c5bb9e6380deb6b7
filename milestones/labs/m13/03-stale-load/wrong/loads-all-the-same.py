class OffloadingManager:
    def add_moves(self, output, pool):
        output.blocks_to_swap_out += [(block, host) for host, (block, _) in self._stores.items()]
        output.blocks_to_swap_in += [(host, block) for block, (host, _) in self._loads.items()]
        if self.secondary is not None:
            self._moving |= {host: key for host, (_, key) in self._stores.items()}
        self._stores, self._loads, self._sources = {}, {}, set()
