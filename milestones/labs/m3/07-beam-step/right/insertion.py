class BeamSearch:
    def advance(self, rows: list[CandidateRow]) -> BeamStep:
        from bisect import insort
        from itertools import islice

        length = self._live_length() + 1
        ranked = self._ranked(rows)
        last = length >= self.max_new_tokens
        goes_on = [not last and token_id not in self.eos_token_ids for _, _, token_id in ranked]
        survivors = list(
            islice((Survivor(p, t, s) for (s, p, t), on in zip(ranked, goes_on, strict=True) if on), self.width)
        )
        ended = [
            (parent, self._end(parent, score, token_id, token_id in self.eos_token_ids))
            for (score, parent, token_id), on in list(zip(ranked, goes_on, strict=True))[: self.width]
            if not on
        ]
        if not (survivors or ended or self.pool):
            ended = self._end_stuck_beams()
        for _, hypothesis in ended:
            insort(self.pool, hypothesis, key=lambda other: -other.normalised_score)
        self.pool = self.pool[: self.width]
        if survivors and self._is_over(max(survivor.score for survivor in survivors), length):
            survivors.clear()
        self.live = [_Beam([*self.live[s.parent].token_ids, s.token_id], s.score) for s in survivors]
        kept = {id(hypothesis) for hypothesis in self.pool}
        return BeamStep(survivors, [Ending(parent, ended_so, id(ended_so) in kept) for parent, ended_so in ended])

    def _ranked(self, rows: list[CandidateRow]) -> list[tuple[float, int, int]]:
        import heapq
        import struct

        def continuations(parent: int) -> list[tuple[float, int, int]]:
            found = []
            for token_id, logprob in zip(*rows[parent], strict=True):
                (score,) = struct.unpack("f", struct.pack("f", self.live[parent].score + logprob))
                if not (math.isnan(score) or score == -math.inf):
                    found.append((score, parent, token_id))
            return sorted(found, key=lambda continuation: -continuation[0])

        return list(
            heapq.merge(
                *map(continuations, [at for at, _ in zip(range(len(self.live)), rows, strict=True)]),
                key=lambda continuation: -continuation[0],
            )
        )
