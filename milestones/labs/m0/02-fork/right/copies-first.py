class Sequence:
    def fork(self, new_seq_id: str) -> Sequence:
        from copy import copy, deepcopy

        child = copy(self)
        child.seq_id, child.data = new_seq_id, deepcopy(self.data)
        child.block_ids, child.output_logprobs = [*self.block_ids], self.output_logprobs.copy()
        return child
