def half(num_tokens: int) -> int:
    return num_tokens - num_tokens // 2


def share_out(
    prefills: list[tuple[Request, SeqTokens]], left: int, prompt_cap: int | None
) -> Iterator[tuple[Request, SeqTokens, int]]:
    shares = []
    for request, group in prefills:
        lacks = sum(dict(group).values())
        share = min(lacks, left, half(left) if prompt_cap is None else prompt_cap)
        shares.append((request, group, share))
        left -= share
    return iter(shares)


def top_up(group: SeqTokens, output: SchedulerOutput, kv: KVCacheManager, left: int) -> SeqTokens:
    lacks, more = dict(group), []
    places = {seq: place for place, seq in enumerate(output.scheduled_seqs)}
    for seq in lacks:
        if seq not in places or seq.status is not SequenceStatus.RUNNING:
            continue
        given = output.num_scheduled_tokens[places[seq]]
        whole = min(lacks[seq], given + left)
        if whole <= given or kv.allocate_slots([(seq, whole)]) is None:
            continue
        left -= whole - given
        output.num_scheduled_tokens[places[seq]] = whole
        output.total_num_scheduled_tokens += whole - given
        output.num_prompt_tokens += (whole - given) * in_prefill(seq)
        output.grown_seqs += [seq]
        if given < seq.get_prompt_len() - seq.num_computed_tokens:
            more += [(seq, whole)]
    return more
