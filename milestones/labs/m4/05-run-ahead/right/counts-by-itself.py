def reads_tokens(params: SamplingParams) -> bool:
    penalties = (params.repetition_penalty - 1, params.presence_penalty, params.frequency_penalty)
    if params.extra_args or params.bad_words_token_ids:
        return True
    return params.use_beam_search or penalties != (0, 0, 0)


def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    for request in reversed(scheduler.running):
        if reads_tokens(request.sampling_params):
            return False
    if len(scheduler.swapped) > 0 or launched.is_empty:
        return False
    for seq, missing in _after(scheduler, launched):
        if missing > 0 or not _ends_with_next_token(seq, scheduler.max_model_len):
            break
    else:
        return False
    free = scheduler.kv.pool.num_free
    enough = scheduler.max_num_seqs + scheduler.kv.blocks_for(scheduler.max_num_batched_tokens)
    return enough <= free or most_blocks_of_next_step(scheduler, launched) <= free


def most_blocks_of_next_step(scheduler: Scheduler, launched: SchedulerOutput) -> int:
    num_seqs = num_tokens = 0
    for _, still_lacks in _after(scheduler, launched):
        num_seqs += 1
        num_tokens += still_lacks
    if num_tokens > scheduler.max_num_batched_tokens:
        num_tokens = scheduler.max_num_batched_tokens
    return num_seqs + -(-num_tokens // scheduler.kv.block_size)


def _ends_with_next_token(seq: Sequence, max_model_len: int) -> bool:
    most = max_model_len - seq.get_prompt_len()
    if (wanted := seq.sampling_params.max_tokens) is not None:
        most = min(most, wanted)
    return most - seq.get_output_len() < 2
