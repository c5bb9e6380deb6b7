def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    if launched.is_empty or scheduler.swapped:
        return False
    if any(reads_tokens(request.sampling_params) for request in scheduler.running):
        return False
    goes_on = [_goes_on(seq, still_lacks, scheduler.max_model_len) for seq, still_lacks in _after(scheduler, launched)]
    return any(goes_on) and scheduler.kv.pool.num_free >= most_blocks_of_next_step(scheduler, launched)
