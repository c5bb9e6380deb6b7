class DraftTokens:
    def give_back(self, seq: Sequence) -> None:
        del seq.block_ids[self.kv.blocks_for(seq.get_len()) :]
