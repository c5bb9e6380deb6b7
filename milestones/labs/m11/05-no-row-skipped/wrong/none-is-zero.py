def _needs_every_row(seq):
    if seq.pooling_params is not None:
        return seq.pooling_params.skip_reading_prefix_cache
    return bool(seq.sampling_params.prompt_logprobs) and seq.index == 0 and seq.get_output_len() == 0
