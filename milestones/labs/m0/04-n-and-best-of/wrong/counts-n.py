class Request:
    def make_seqs(self) -> None:
        for index in range(self.sampling_params.n):
            seq = Sequence(
                seq_id=f"{self.request_id}-{index}",
                request_id=self.request_id,
                data=SequenceData(self.prompt_token_ids),
                sampling_params=self.sampling_params,
            )
            self.add_seq(seq)
