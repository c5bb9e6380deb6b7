class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        whole = self._decode(self.ids[self.prefix_offset :])
        known = known[: len(known) - self.num_held]
        complete = whole if final else whole.removesuffix(REPLACEMENT)
        added = complete[len(known) :]
        if added and not final:
            self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
            self.num_held = len(whole) - len(complete)
        return added
