class BeamSearch:
    def advance(self, rows: list[CandidateRow]) -> BeamStep:
        length = self._live_length() + 1
        survivors: list[Survivor] = []
        ended: list[tuple[int, Hypothesis]] = []
        for rank, (score, parent, token_id) in enumerate(self._ranked(rows)):
            is_eos = token_id in self.eos_token_ids
            if not is_eos and length < self.max_new_tokens:
                survivors.append(Survivor(parent, token_id, score))
            else:
                ended.append((parent, self._end(parent, score, token_id, is_eos)))
            if rank + 1 == self.width:
                break
        if not survivors and not ended and not self.pool:
            ended = self._end_stuck_beams()
        self.pool += [hypothesis for _, hypothesis in ended]
        self.pool.sort(key=lambda hypothesis: -hypothesis.normalised_score)  # stable: of equals the older one stays
        del self.pool[self.width :]
        if survivors and self._is_over(survivors[0].score, length):
            survivors = []
        self.live = [_Beam([*self.live[s.parent].token_ids, s.token_id], s.score) for s in survivors]
        return BeamStep(survivors, [Ending(parent, h, kept=h in self.pool) for parent, h in ended])
