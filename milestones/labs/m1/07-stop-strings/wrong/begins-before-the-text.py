class SequenceOutput:
    def _cut_at_stop(self, num_added: int) -> bool:
        found = [
            (at, stop)
            for stop in self.stops
            if (at := self.text.find(stop, len(self.text) - num_added - len(stop) + 1)) >= 0
        ]
        if not found:
            return False
        at, stop = min(found)
        self.text = self.text[: at + (len(stop) if self.params.include_stop_str_in_output else 0)]
        self.seq.stop_reason = stop
        return True
