class Request:
    def make_seq(self) -> Sequence:
        index = self.sampling_params.n - self.num_unmade
        seq = Sequence(
            seq_id=f"{self.request_id}-{index}",
            request_id=self.request_id,
            data=SequenceData(self.prompt_token_ids),
            sampling_params=self.sampling_params,
        )
        self.num_unmade -= 1
        self.add_seq(seq)
        return seq
