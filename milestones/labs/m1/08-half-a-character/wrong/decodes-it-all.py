class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        whole = self._decode(self.ids)
        num_known = len(self._decode(self.ids[: self.read_offset])) - self.num_held
        if whole.endswith(REPLACEMENT) and not final:
            if len(self.ids) - self.read_offset > LONGEST_CHARACTER:
                return self._give_up(whole[num_known:-1])
            return ""
        self.read_offset, self.num_held = len(self.ids), 0
        return whole[num_known:]
