class Request:
    @property
    def status(self) -> RequestStatus:
        statuses = {sequence.status for sequence in self.sequences.values()} - {_S.FINISHED_IGNORED}
        for live in (_S.RUNNING, _S.SWAPPED, _S.WAITING):
            if live in statuses:
                return RequestStatus[live.name]
        if not statuses or _S.FINISHED_ABORTED in statuses:
            return RequestStatus.FINISHED_ABORTED
        capped = _S.FINISHED_LENGTH_CAPPED in statuses
        return RequestStatus.FINISHED_LENGTH_CAPPED if capped else RequestStatus.FINISHED_STOPPED

    def is_finished(self) -> bool:
        return all(SequenceStatus.is_finished(seq.status) for seq in self.sequences.values())
