def _needs_every_row(seq):
    if seq.pooling_params is not None:
        return True
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0
