class SequenceOutput:
    def _cut_at_stop(self, num_added: int) -> bool:
        ends = range(len(self.text) - num_added + 1, len(self.text) + 1)
        found = [
            (end - len(stop), at, end)
            for at, stop in enumerate(self.stops)
            for end in ends
            if self.text[:end].endswith(stop)
        ]
        for start, at, end in sorted(found):
            self.seq.stop_reason = self.stops[at]
            self.text = self.text[:end] if self.params.include_stop_str_in_output else self.text[:start]
            return True
        return False

    def shown_text(self) -> str:
        held = 0 if self.seq.is_finished() else self.holdback
        return "".join(character for place, character in enumerate(self.text) if place < len(self.text) - held)
