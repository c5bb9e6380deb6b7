def part_winners(logits: torch.Tensor, noise: torch.Tensor, first_token: int) -> torch.Tensor:
    import math

    rows = []
    for row, drawn in zip(logits.tolist(), noise.tolist(), strict=True):
        scores = [logit - math.log(number) for logit, number in zip(row, drawn, strict=True)]
        best = max(range(len(scores)), key=lambda column: scores[column])
        rows.append((scores[best], float(first_token + best)))
    return torch.tensor(rows, dtype=torch.float64)


def draw_winners(winners: list[torch.Tensor]) -> torch.Tensor:
    tokens = []
    for row in zip(*(part.tolist() for part in winners), strict=True):
        _score, token = max(row, key=lambda pair: (pair[0], -pair[1]))
        tokens.append(int(token))
    return torch.tensor(tokens)
