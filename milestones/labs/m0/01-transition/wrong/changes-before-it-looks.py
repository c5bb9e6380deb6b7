class Sequence:
    def transition(self, to: SequenceStatus) -> None:
        before, self.status = self.status, to
        if to not in TRANSITIONS[before]:
            allowed = sorted(status.name for status in TRANSITIONS[before])
            raise IllegalTransition(
                f"status of sequence {self.seq_id!r} must not go from {before.name} to {to.name}; "
                f"legal from here: {', '.join(allowed) or 'nothing, it is over'}"
            )
