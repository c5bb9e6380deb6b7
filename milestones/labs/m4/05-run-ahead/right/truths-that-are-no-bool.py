def reads_tokens(params: SamplingParams) -> bool:
    if params.use_beam_search or params.repetition_penalty != 1:
        return params
    return params.presence_penalty or params.frequency_penalty or params.bad_words_token_ids or params.extra_args


def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    free = scheduler.kv.pool.num_free
    ever = scheduler.max_num_seqs + scheduler.kv.blocks_for(scheduler.max_num_batched_tokens)
    reasons = (
        lambda: launched.is_empty,
        lambda: scheduler.swapped,
        lambda: any(map(reads_tokens, [request.sampling_params for request in scheduler.running])),
        lambda: all(not _goes_on(*pair, scheduler.max_model_len) for pair in _after(scheduler, launched)),
        lambda: free < ever and most_blocks_of_next_step(scheduler, launched) > free,
    )
    return not any(reason() for reason in reasons)


def most_blocks_of_next_step(scheduler: Scheduler, launched: SchedulerOutput) -> int:
    import numpy as np

    lacks = np.array([lack for _, lack in _after(scheduler, launched)])
    return lacks.size + scheduler.kv.blocks_for(lacks.sum().clip(max=scheduler.max_num_batched_tokens))


def _ends_with_next_token(seq: Sequence, max_model_len: int) -> bool:
    lengths = [(seq.get_len(), max_model_len), (seq.get_output_len(), seq.sampling_params.max_tokens)]
    return any(limit is not None and length + 1 >= limit for length, limit in lengths)
