class PromptLogprobs:
    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        computed, num_top = seq.num_computed_tokens, seq.sampling_params.prompt_logprobs
        assert num_top is not None
        pieces = [cut(self._rows[seq], computed)] if seq in self._rows else []
        self._rows.clear()
        prompt = seq.data.prompt_token_ids
        (targets,) = upload(self.device, np.array(prompt[computed + 1 : computed + 1 + len(hidden)], np.int64))
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            pieces.append(gather_logprobs(logits.float().log_softmax(dim=-1), num_top, wanted))
        rows = self._rows[seq] = (
            joined(pieces) if pieces else LogprobsTensors(targets[:, None], targets[:, None].float(), targets)
        )
        return rows
