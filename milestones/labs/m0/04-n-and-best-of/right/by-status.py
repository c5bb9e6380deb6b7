class Request:
    def make_seqs(self) -> None:
        names = map("{}-{}".format, [self.request_id] * self.sampling_params.best_of, range(10**9))
        for name in names:
            self.add_seq(
                Sequence(
                    name, self.request_id, SequenceData(self.prompt_token_ids, []), self.sampling_params, block_ids=[]
                )
            )

    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    @property
    def status(self) -> RequestStatus:
        from collections import Counter

        found = Counter(seq.status for seq in self.sequences.values())
        del found[_S.FINISHED_IGNORED]
        order = [
            _S.RUNNING,
            _S.SWAPPED,
            _S.WAITING,
            _S.FINISHED_ABORTED,
            _S.FINISHED_LENGTH_CAPPED,
            _S.FINISHED_STOPPED,
        ]
        return next((RequestStatus[status.name] for status in order if found[status]), RequestStatus.FINISHED_ABORTED)
