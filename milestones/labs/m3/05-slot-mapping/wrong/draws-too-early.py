class InputBatch:
    def prepare(self, seqs: list[Sequence], num_scheduled_tokens: list[int], forks: Forks) -> StepInputs:
        rows = np.fromiter((self._row_of[seq.seq_id] for seq in seqs), np.int64, len(seqs))
        num_new = np.array(num_scheduled_tokens)
        start = self.num_computed[rows]
        seq_lens = start + num_new
        ends = num_new.cumsum()
        if ends[-1] == len(seqs):  # one token each: nothing to repeat
            flat_rows, positions = rows, start
        else:
            flat_rows = rows.repeat(num_new)
            positions = np.arange(ends[-1]) + (seq_lens - ends).repeat(num_new)
        blocks = self.block_table[flat_rows, positions // self.block_size]
        max_seq_len = int(seq_lens.max())
        max_blocks = -(-max_seq_len // self.block_size)
        metadata = AttentionMetadata(
            query_start_loc=self._int32(np.concatenate([[0], ends])),
            seq_lens=self._int32(seq_lens),
            slot_mapping=torch.from_numpy(blocks * self.block_size + positions % self.block_size).to(self.device),
            block_tables=self._int32(self.block_table[rows, :max_blocks]),
            max_query_len=int(num_new.max()),
            max_seq_len=max_seq_len,
        )
        draws = np.arange(len(seqs))
        drawn_at = ends[draws] - 1
        if forks:
            place_of = {seq.seq_id: place for place, seq in enumerate(seqs)}
            parents = [place_of[parent.seq_id] for parent, _ in forks]
            draws = np.concatenate([draws, np.arange(len(seqs), len(seqs) + len(forks))])
            drawn_at = np.concatenate([drawn_at, ends[parents] - 1])
        in_order = len(drawn_at) == ends[-1]  # a pure decode step: one token each, and each of them draws
        return StepInputs(
            input_ids=torch.from_numpy(self.token_ids[flat_rows, positions]).to(self.device),
            positions=torch.from_numpy(positions).to(self.device),
            metadata=metadata,
            rows=rows,
            num_new=num_new,
            draws=draws,
            logits_at=None if in_order and not forks else torch.from_numpy(drawn_at).to(self.device),
        )
