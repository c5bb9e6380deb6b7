class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        fresh = self._decode(self.ids[self.read_offset :])
        if fresh.endswith(REPLACEMENT) and not final:
            if len(self.ids) - self.read_offset > LONGEST_CHARACTER:
                return self._give_up(fresh[:-1])
            return ""
        self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
        return fresh
