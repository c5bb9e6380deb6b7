class SequenceOutput:
    def shown_text(self) -> str:
        return self.text if self.seq.is_finished() else self.text[: -self.holdback]
