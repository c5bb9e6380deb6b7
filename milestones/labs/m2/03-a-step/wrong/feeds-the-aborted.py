class Scheduler:
    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None]
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        gained: list[tuple[Sequence, SequenceStatus | None]] = []
        for seq, num_tokens, token_id in zip(
            output.scheduled_seqs, output.num_scheduled_tokens, token_ids, strict=True
        ):
            seq.num_computed_tokens += num_tokens
            if token_id is not None:
                seq.data.output_token_ids.append(token_id)
                gained.append((seq, check_stop(seq, self.eos_token_ids, self.max_model_len)))
        return gained
