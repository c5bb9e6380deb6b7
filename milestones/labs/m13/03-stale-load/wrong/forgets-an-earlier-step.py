class OffloadingManager:
    def add_moves(self, output, pool):
        output.blocks_to_swap_out += [(block, host) for host, (block, _) in self.stores.items()]
        for block, (host, key) in self.loads.items():
            if pool.hash_of(block) == key:
                output.blocks_to_swap_in.append((host, block))
        if self.secondary is not None:
            self.moving = {host: key for host, (_, key) in self.stores.items()}
        self.stores, self.loads, self.sources = {}, {}, set()
