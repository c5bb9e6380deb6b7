"""A stop string may end in the middle of a run of bytes."""

from __future__ import annotations

from folovllm.engine.output_processor import SequenceOutput
from folovllm.request import Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams
from tests.m1.test_detokenizer import FALLBACK, ids_of


def test_a_stop_string_of_a_byte_stops_at_that_token():
    """Else each request to Llama 2 that stops at a newline would compute a token more."""
    seq = Sequence("0", "r", SequenceData(ids_of("a")), SamplingParams(stop="\n", max_tokens=9))
    text = SequenceOutput(seq, FALLBACK)
    ended = []
    for token_id in ids_of("d", b"\n"):
        seq.data.add_token_id(token_id)
        ended.append(text.add_token(token_id, None))
    assert (ended, text.text) == ([None, SequenceStatus.FINISHED_STOPPED], "d")
