def top_up(group: SeqTokens, output: SchedulerOutput, kv: KVCacheManager, left: int) -> SeqTokens:
    more: SeqTokens = []
    for seq, num_tokens in group:
        if left == 0 or seq.status is not SequenceStatus.RUNNING or seq not in output.scheduled_seqs:
            continue
        place = output.scheduled_seqs.index(seq)
        given = output.num_scheduled_tokens[place]
        extra = min(num_tokens - given, left)
        if extra == 0 or kv.allocate_slots([(seq, extra)]) is None:
            continue
        output.num_scheduled_tokens[place] += extra
        output.total_num_scheduled_tokens += extra
        output.num_prompt_tokens += extra if in_prefill(seq) else 0
        output.grown_seqs.append(seq)
        left -= extra
        if seq.num_computed_tokens + given < seq.get_prompt_len():
            more.append((seq, given + extra))
    return more
