def _needs_every_row(seq):
    if seq.pooling_params is not None:
        return seq.pooling_params.skip_reading_prefix_cache
    return seq.sampling_params.prompt_logprobs is not None and seq.index == 0
