class Scheduler:
    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_seq_ids=list(self.finished_seq_ids))
        self.finished_seq_ids = self.finished_seq_ids[len(self.finished_seq_ids) :]
        everyone = (seq for request in self.running for seq in request.get_seqs(SequenceStatus.RUNNING))
        for seq in everyone:
            output.add(seq, seq.get_len() - seq.num_computed_tokens)
        joins = True
        while joins and len(self.waiting):
            joins = self._admit(self.waiting.peek(), output)
        return output

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        def gain(place: int, token_id: int | None) -> Iterable[tuple[Sequence, SequenceStatus | None]]:
            seq = output.scheduled_seqs[place]
            if seq.status.name == "RUNNING":
                seq.num_computed_tokens = output.num_scheduled_tokens[place] + seq.num_computed_tokens
                if token_id is not None:
                    seq.add_token_id(token_id)
                    yield seq, check_stop(seq, self.eos_token_ids, self.max_model_len)

        return [
            gained
            for place, token_id in zip(range(len(output.scheduled_seqs)), token_ids, strict=True)
            for gained in gain(place, token_id)
        ]
