class Request:
    def unstarted(self, most: int) -> list[Sequence]:
        while self.num_unmade:
            self.make_seq()
        return [seq for seq in self.get_seqs(_S.WAITING) if seq.get_output_len() == 0][:most]
