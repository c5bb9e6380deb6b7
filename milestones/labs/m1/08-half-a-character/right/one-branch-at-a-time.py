class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        window = self.ids[self.prefix_offset :]
        given_out = self._decode(window[: self.read_offset - self.prefix_offset])
        if self.num_held:
            given_out = given_out[: -self.num_held]
        added = self._decode(window)[len(given_out) :]
        match added.endswith(REPLACEMENT), final:
            case True, False if len(self.ids) > self.read_offset + LONGEST_CHARACTER:
                return self._give_up(added[:-1])
            case True, False:
                return ""
        if added:
            self.prefix_offset = self.read_offset
            self.read_offset += len(self.ids) - self.read_offset
            self.num_held = 0
        return added
