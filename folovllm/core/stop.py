"""When a sequence ends, as far as its token ids tell. (Stop strings need text: engine/output_processor.py.)

vLLM: v1/core/sched/utils.py (check_stop)
"""

from __future__ import annotations

from folovllm.request import Sequence, SequenceStatus


def check_stop(seq: Sequence, eos_token_ids: frozenset[int], max_model_len: int) -> SequenceStatus | None:
    """The finished status that the newest token of `seq` brings about, or None if it goes on.

    A stop token counts before the length: a sequence whose last allowed token is EOS ends with "stop".
    Sets seq.stop_reason to the token id when it was one of stop_token_ids; for EOS it stays None.
    """
    params, output = seq.sampling_params, seq.data.output_token_ids
    num_output = len(output)
    if num_output >= params.min_tokens:
        token_id = output[-1]
        if not params.ignore_eos and token_id in eos_token_ids:
            return SequenceStatus.FINISHED_STOPPED
        if token_id in (params.stop_token_ids or ()):
            seq.stop_reason = token_id
            return SequenceStatus.FINISHED_STOPPED
    if params.max_tokens is not None and num_output >= params.max_tokens:
        return SequenceStatus.FINISHED_LENGTH_CAPPED
    if seq.data.num_prompt_tokens + num_output >= max_model_len:
        return SequenceStatus.FINISHED_LENGTH_CAPPED
    return None
