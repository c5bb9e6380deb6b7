def share_out(
    prefills: list[tuple[Request, Wants]], left: int, threshold: int | None
) -> Iterator[tuple[Request, Wants, int]]:
    for request, group in prefills:
        most = half(left) if threshold is None else threshold or left
        share = min(sum(num_tokens for _, num_tokens in group), most, left)
        yield request, group, share
