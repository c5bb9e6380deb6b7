class OffloadingManager:
    def find(self, block_hash, parent, token_ids):
        host = self.known.get(block_hash)
        if host is None or host.parent != parent or host.token_ids != token_ids:
            return None
        return host
