class EngineStats:
    @property
    def prefix_hit_rate(self) -> float:
        return 100 * self.prefix_cache_hits / self.prefix_cache_queries if self.prefix_cache_queries else 0.0
