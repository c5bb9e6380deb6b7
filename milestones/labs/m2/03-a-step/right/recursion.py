class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput()
        while self.finished_seq_ids:
            output.finished_seq_ids.append(self.finished_seq_ids.pop(0))
        for seq in [seq for request in self.running for seq in request.get_seqs() if not seq.is_finished()]:
            if seq.block_ids:
                output.add(seq, seq.get_len() - seq.num_computed_tokens)

        def join() -> None:
            if len(self.waiting) > 0 and self._admit(self.waiting.peek(), output):
                join()

        join()
        return output

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        tokens = [*token_ids]
        if len(tokens) != len(output.rows):
            raise ValueError(f"token_ids must have {len(output.rows)} entries, got {len(tokens)}")
        gained = {}
        for i in range(len(tokens)):
            seq = output.rows[i]
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens = seq.num_computed_tokens + output.num_scheduled_tokens[i]
                if tokens[i] is not None:
                    seq.data.output_token_ids += [tokens[i]]
                    gained[seq] = None
        return [(seq, check_stop(seq, self.eos_token_ids, self.max_model_len)) for seq in gained]
