class Request:
    def make_seqs(self) -> None:
        data = SequenceData(self.prompt_token_ids)
        for index in range(self.sampling_params.best_of):
            seq = Sequence(
                seq_id=f"{self.request_id}-{index}",
                request_id=self.request_id,
                data=data,
                sampling_params=self.sampling_params,
            )
            self.add_seq(seq)
