class OffloadingManager:
    def _take_free(self, keep=()):
        if self.free:
            return self.free.pop()
        for key in reversed(self.known):
            block = self.known[key].block
            if block not in self.sources and block not in self.moving and block not in self.jobs:
                if key in keep:
                    return None
                del self.known[key]
                self.stores.pop(block, None)
                return block
        return None
