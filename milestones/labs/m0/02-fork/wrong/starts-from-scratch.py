class Sequence:
    def fork(self, new_seq_id: str) -> Sequence:
        return Sequence(
            seq_id=new_seq_id,
            request_id=self.request_id,
            data=SequenceData(list(self.data.prompt_token_ids), list(self.data.output_token_ids)),
            sampling_params=self.sampling_params,
        )
