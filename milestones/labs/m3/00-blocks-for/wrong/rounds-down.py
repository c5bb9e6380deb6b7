class KVCacheManager:
    def blocks_for(self, num_tokens: int) -> int:
        return num_tokens // self.block_size
