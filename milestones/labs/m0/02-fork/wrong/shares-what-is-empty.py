class Sequence:
    def fork(self, new_seq_id: str) -> Sequence:
        output = self.data.output_token_ids and list(self.data.output_token_ids)
        return replace(
            self,
            seq_id=new_seq_id,
            data=SequenceData(list(self.data.prompt_token_ids), output),
            block_ids=list(self.block_ids),
            output_logprobs=list(self.output_logprobs),
        )
