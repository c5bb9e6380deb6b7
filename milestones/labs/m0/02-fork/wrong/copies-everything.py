class Sequence:
    def fork(self, new_seq_id: str) -> Sequence:
        import copy

        child = copy.deepcopy(self)
        child.seq_id = new_seq_id
        return child
