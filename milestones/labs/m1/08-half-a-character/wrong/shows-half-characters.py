class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        whole = self._decode(self.ids[self.prefix_offset :])
        self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
        return whole[len(known) :]
