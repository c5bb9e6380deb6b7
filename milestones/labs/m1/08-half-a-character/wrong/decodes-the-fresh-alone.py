class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        fresh = self._decode(self.ids[self.read_offset :])
        complete = fresh if final else fresh.removesuffix(REPLACEMENT)
        if complete:
            self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
        return complete
