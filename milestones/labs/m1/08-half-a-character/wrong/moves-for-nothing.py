class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        whole = self._decode(self.ids[self.prefix_offset :])
        num_known = max(0, len(known) - self.num_held)
        incomplete = whole.endswith(REPLACEMENT) and not final
        if incomplete and len(self.ids) - self.read_offset > LONGEST_CHARACTER:
            return self._give_up(whole[num_known:-1])
        if incomplete:
            return ""
        self.prefix_offset, self.read_offset, self.num_held = self.read_offset, len(self.ids), 0
        return whole[num_known:]
