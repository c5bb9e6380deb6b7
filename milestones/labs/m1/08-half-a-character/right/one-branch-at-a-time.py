class IncrementalDetokenizer:
    def _advance(self, *, final: bool) -> str:
        text = self._decode(self.ids[self.prefix_offset :])
        waits = text.endswith(REPLACEMENT) and not final
        if waits:
            text = text[:-1]
        given_out = self._decode(self.ids[self.prefix_offset : self.read_offset])
        if self.num_held:
            given_out = given_out[:-1]
        same = 0
        while same < min(len(text), len(given_out)) and text[same] == given_out[same]:
            same += 1
        if same == len(text):
            return ""
        if not final:
            self.num_held = 1 if waits else 0
            self.prefix_offset = self.read_offset
            self.read_offset += len(self.ids) - self.read_offset
        return text[same:]
