class Sequence:
    def transition(self, to: SequenceStatus) -> None:
        if to is self.status:
            return
        if to not in TRANSITIONS[self.status]:
            allowed = sorted(status.name for status in TRANSITIONS[self.status])
            raise IllegalTransition(
                f"status of sequence {self.seq_id!r} must not go from {self.status.name} to {to.name}; "
                f"legal from here: {', '.join(allowed) or 'nothing, it is over'}"
            )
        self.status = to
