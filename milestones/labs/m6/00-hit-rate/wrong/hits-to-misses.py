class EngineStats:
    @property
    def prefix_hit_rate(self) -> float:
        misses = self.prefix_cache_queries - self.prefix_cache_hits
        return self.prefix_cache_hits / misses if misses else 0.0
