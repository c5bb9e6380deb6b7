class PromptLogprobs:
    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        computed, num_top = seq.num_computed_tokens, seq.sampling_params.prompt_logprobs
        assert num_top is not None
        pieces = [cut(self._rows[seq], computed)] if seq in self._rows and computed else []
        prompt = seq.data.prompt_token_ids
        (targets,) = upload(self.device, np.array(prompt[computed + 1 : computed + 1 + len(hidden)], np.int64))
        logprobs = self.model.compute_logits(hidden[: len(targets)]).float().log_softmax(dim=-1)
        if len(targets):
            pieces.append(gather_logprobs(logprobs, num_top, targets))
        rows = self._rows[seq] = (
            joined(pieces) if pieces else LogprobsTensors(targets[:, None], targets[:, None].float(), targets)
        )
        return rows
