class BeamSearch:
    def _ranked(self, rows: list[CandidateRow]) -> list[tuple[float, int, int]]:
        ranked = []
        for parent, (beam, (token_ids, logprobs)) in enumerate(zip(self.live, rows, strict=True)):
            scores = array("f", [beam.score + logprob for logprob in logprobs])
            row = [
                (score, parent, token_id)
                for score, token_id in zip(scores, token_ids, strict=True)
                if score > -math.inf  # false for NaN as well
            ]
            row.sort(key=lambda candidate: candidate[0], reverse=True)
            ranked += row[: self.width // len(self.live)]
        ranked.sort(key=lambda candidate: candidate[0], reverse=True)
        return ranked
