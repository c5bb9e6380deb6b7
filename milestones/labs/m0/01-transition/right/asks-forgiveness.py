class Sequence:
    def transition(self, to: SequenceStatus) -> None:
        here = self.status
        moves = {(start.name, end.name) for start in TRANSITIONS for end in TRANSITIONS[start]}
        self.status = to
        try:
            moves.remove((here.name, to.name))
        except KeyError:
            self.status = here
            legal = sorted(end for start, end in moves if start == here.name) or ["nothing", "it is over"]
            head = "status of sequence {!r} must not go from {} to {}; legal from here: "
            raise IllegalTransition(head.format(self.seq_id, here.name, to.name) + ", ".join(legal)) from None
