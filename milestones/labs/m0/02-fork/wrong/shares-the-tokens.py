class Sequence:
    def fork(self, new_seq_id: str) -> Sequence:
        return Sequence(
            seq_id=new_seq_id,
            request_id=self.request_id,
            data=self.data,
            sampling_params=self.sampling_params,
            status=self.status,
            block_ids=list(self.block_ids),
            num_computed_tokens=self.num_computed_tokens,
            output_logprobs=list(self.output_logprobs),
            cumulative_logprob=self.cumulative_logprob,
            stop_reason=self.stop_reason,
        )
