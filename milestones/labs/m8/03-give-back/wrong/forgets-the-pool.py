class KVCacheManager:
    def accept_draft_tokens(self, seq: Sequence, num_accepted: int) -> None:
        seq.num_computed_tokens += num_accepted
        del seq.block_ids[self.blocks_for(seq.get_len()) :]
