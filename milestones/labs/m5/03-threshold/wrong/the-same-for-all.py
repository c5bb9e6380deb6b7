def share_out(
    prefills: list[tuple[Request, SeqTokens]], left: int, prompt_cap: int | None
) -> Iterator[tuple[Request, SeqTokens, int]]:
    for request, group in prefills:
        most = half(left) if prompt_cap is None else prompt_cap
        share = min(sum(num_tokens for _, num_tokens in group), most, left)
        yield request, group, share
