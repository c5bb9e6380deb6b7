class OffloadingManager:
    def _take_free(self, keep=()):
        if self.free:
            return self.free.pop()
        for key, host in self.known.items():
            if host.block not in self.moving and host.block not in self.jobs:
                if key in keep:
                    return None
                del self.known[key]
                self.stores.pop(host.block, None)
                return host.block
        return None
