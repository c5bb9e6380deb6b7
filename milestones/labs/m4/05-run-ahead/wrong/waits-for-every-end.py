def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    if launched.is_empty or scheduler.swapped:
        return False
    if any(reads_tokens(request.sampling_params) for request in scheduler.running):
        return False
    if any(_ends_with_next_token(seq, scheduler.max_model_len) for seq, _ in _after(scheduler, launched)):
        return False
    return scheduler.kv.pool.num_free >= most_blocks_of_next_step(scheduler, launched)
