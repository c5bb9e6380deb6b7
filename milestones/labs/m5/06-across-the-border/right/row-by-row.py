class PromptLogprobs:
    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        begin, prompt = seq.num_computed_tokens, seq.data.prompt_token_ids
        num_top = seq.sampling_params.prompt_logprobs
        none = torch.empty(0, 1 + num_top, device=self.device)
        held = self._rows.get(seq, LogprobsTensors(none.long(), none, none[:, 0].long()))
        pieces = [cut(held, begin)]
        for row, target in zip(hidden, prompt[begin + 1 :], strict=False):  # hidden ends first, or the prompt
            logits = self.model.compute_logits(row[None]).double()
            logprobs = (logits - logits.logsumexp(-1, keepdim=True)).float()
            pieces.append(gather_logprobs(logprobs, num_top, torch.tensor([target], device=self.device)))
        self._rows[seq] = joined([piece for piece in pieces if len(piece.ranks)] or pieces)
        return self._rows[seq]
