class Request:
    def make_seqs(self) -> None:
        def make(index: int) -> None:
            if index:
                make(index - 1)
            data = SequenceData(prompt_token_ids=self.prompt_token_ids)
            self.add_seq(Sequence("-".join([self.request_id, str(index)]), self.request_id, data, self.sampling_params))

        make(self.sampling_params.best_of - 1)

    def is_finished(self) -> bool:
        return not any(seq.status not in FINISHED for seq in self.sequences.values())

    @property
    def status(self) -> RequestStatus:
        order = ["RUNNING", "SWAPPED", "WAITING", "FINISHED_ABORTED", "FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"]
        names = (seq.status.name for seq in self.sequences.values() if seq.status is not _S.FINISHED_IGNORED)
        return RequestStatus[min(names, key=order.index, default="FINISHED_ABORTED")]
