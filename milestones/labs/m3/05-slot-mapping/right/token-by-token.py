class InputBatch:
    def prepare(self, seqs: list[Sequence], num_scheduled_tokens: list[int], forks: Forks) -> StepInputs:
        input_ids, positions, slots, ends, lens, draws, drawn_at = [], [], [], [0], [], [], []
        rows = self._rows_of(seqs)
        for place, (row, count) in enumerate(zip(rows, num_scheduled_tokens, strict=True)):
            first = int(self.num_computed[row])
            for position in range(first, first + count):
                entry, offset = divmod(position, self.block_size)
                input_ids.append(int(self.token_ids[row, position]))
                positions.append(position)
                slots.append(int(self.block_table[row, entry]) * self.block_size + offset)
            ends.append(len(positions))
            lens.append(first + count)
            if lens[-1] >= self.num_tokens[row]:
                draws.append(place)
                drawn_at.append(len(positions) - 1)
        ids = [seq.seq_id for seq in seqs]
        for number, (parent, _) in enumerate(forks):
            draws.append(len(seqs) + number)
            drawn_at.append(ends[ids.index(parent.seq_id) + 1] - 1)
        columns = 1 + (max(lens) - 1) // self.block_size
        in_order = drawn_at == list(range(len(positions)))
        metadata = AttentionMetadata(
            query_start_loc=self._int32(np.array(ends)),
            seq_lens=self._int32(np.array(lens)),
            slot_mapping=torch.tensor(slots, device=self.device),
            block_tables=self._int32(self.block_table[rows][:, :columns]),
            max_query_len=max(num_scheduled_tokens),
            max_seq_len=max(lens),
        )
        return StepInputs(
            input_ids=torch.tensor(input_ids, device=self.device),
            positions=torch.tensor(positions, device=self.device),
            metadata=metadata,
            rows=rows,
            num_new=np.array(num_scheduled_tokens),
            draws=np.array(draws, np.int64),
            logits_at=None if in_order else torch.tensor(drawn_at, dtype=torch.int64, device=self.device),
        )
