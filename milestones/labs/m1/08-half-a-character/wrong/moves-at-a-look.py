class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        known = self._decode(self.ids[self.prefix_offset : self.read_offset])
        known = known[: len(known) - self.num_held]
        whole = self._decode(self.ids[self.prefix_offset :])
        complete = whole if final else whole.removesuffix(REPLACEMENT)
        while not complete.startswith(known):
            known = known[:-1]
        added = complete[len(known) :]
        if added:
            self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
            self.num_held = len(whole) - len(complete)
        return added
