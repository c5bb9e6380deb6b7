class IncrementalDetokenizer:
    def _give_up(self, added: str) -> str:
        self.prefix_offset, self.read_offset = len(self.ids) - LONGEST_CHARACTER, len(self.ids)
        return added
