def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    if launched.is_empty or scheduler.swapped:
        return False
    if any(reads_tokens(request.sampling_params) for request in scheduler.running):
        return False
    return any(_goes_on(seq, still_lacks, scheduler.max_model_len) for seq, still_lacks in _after(scheduler, launched))
