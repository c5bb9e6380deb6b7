def half(num_tokens: int) -> int:
    import math

    return math.ceil(num_tokens / 2)


def share_out(
    prefills: list[tuple[Request, SeqTokens]], left: int, prompt_cap: int | None
) -> Iterator[tuple[Request, SeqTokens, int]]:
    if not prefills:
        return
    (request, group), *others = prefills
    limits = [left, sum(num_tokens for _, num_tokens in group), half(left) if prompt_cap is None else prompt_cap]
    yield request, group, min(limits)
    yield from share_out(others, left - min(limits), prompt_cap)


def top_up(group: SeqTokens, output: SchedulerOutput, kv: KVCacheManager, left: int) -> SeqTokens:
    if not group:
        return []
    (seq, lacks), others = group[0], group[1:]
    extra, given = 0, dict(zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)).get(seq)
    if given is not None and seq.status.name == "RUNNING" and (extra := max(0, min(lacks - given, left))):
        if (copies := kv.allocate_slots([(seq, given + extra)])) is None:
            extra = 0
        else:
            output.add_copies(copies)
            if seq not in output.grown_seqs:
                output.grown_seqs.append(seq)
            output.num_scheduled_tokens = [
                n + extra * (s is seq) for s, n in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
            ]
            output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens)
            prompt_left = max(0, seq.get_prompt_len() - seq.num_computed_tokens - given)
            output.num_prompt_tokens += min(extra, prompt_left)
    rest = top_up(others, output, kv, left - extra)
    short = given is not None and seq.num_computed_tokens + given < seq.get_prompt_len()
    return [(seq, given + extra), *rest] if extra and short else rest
