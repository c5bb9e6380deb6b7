class PromptLogprobs:
    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        """In float64, with the pieces of torch.split; what was held goes in front of each new piece."""
        first, k = seq.num_computed_tokens, seq.sampling_params.prompt_logprobs
        asked = torch.tensor(seq.data.prompt_token_ids, device=self.device)[first + 1 :][: len(hidden)]
        rows = LogprobsTensors(
            torch.empty(0, k + 1, dtype=torch.int64), torch.empty(0, k + 1), torch.empty(0, dtype=torch.int64)
        )
        if first:
            rows = cut(self._rows[seq], first)
        if len(asked):
            for states, ids in zip(
                hidden[: len(asked)].split(PROMPT_LOGPROBS_ROWS), asked.split(PROMPT_LOGPROBS_ROWS), strict=True
            ):
                logprobs = self.model.compute_logits(states).double().log_softmax(dim=-1)
                rows = joined([rows, gather_logprobs(logprobs, k, ids)])
        self._rows[seq] = rows
        return rows
