def share_out(
    prefills: list[tuple[Request, Wants]], left: int, threshold: int | None
) -> Iterator[tuple[Request, Wants, int]]:
    for request, group in prefills:
        most = threshold or half(left)
        share = min(sum(num_tokens for _, num_tokens in group), most, left)
        left -= share
        yield request, group, share
