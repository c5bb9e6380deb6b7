class Request:
    @property
    def status(self) -> RequestStatus:
        statuses = {sequence.status for sequence in self.sequences.values()}
        for live in (_S.RUNNING, _S.SWAPPED, _S.WAITING):
            if live in statuses:
                return RequestStatus[live.name]
        if _S.FINISHED_ABORTED in statuses or _S.FINISHED_IGNORED in statuses:
            return RequestStatus.FINISHED_ABORTED
        capped = _S.FINISHED_LENGTH_CAPPED in statuses
        return RequestStatus.FINISHED_LENGTH_CAPPED if capped else RequestStatus.FINISHED_STOPPED
