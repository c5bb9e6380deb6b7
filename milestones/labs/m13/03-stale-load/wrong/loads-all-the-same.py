class OffloadingManager:
    def add_moves(self, output, pool):
        output.blocks_to_swap_out += [(block, host) for host, (block, _) in self.stores.items()]
        output.blocks_to_swap_in += [(host, block) for block, (host, _) in self.loads.items()]
        if self.secondary is not None:
            self.moving |= {host: key for host, (_, key) in self.stores.items()}
        self.stores, self.loads, self.sources = {}, {}, set()
