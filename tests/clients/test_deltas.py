"""Differences that go over a wire and are added up again. By hand."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from folovllm import AsyncLLM, SamplingParams, StructuredOutputsParams
from folovllm.engine.deltas import DeltaDecoder, DeltaEncoder
from folovllm.engine.input_processor import Checked
from folovllm.engine.messages import EngineCoreRequest
from folovllm.engine.output_processor import fastest_decoder
from folovllm.outputs import CompletionOutput, RequestOutput

PROMPT = "Once upon a time"


def outputs_of(params: SamplingParams, *, text_here: bool = False) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """What an engine hands out, and what is left of it after a pickled journey."""

    async def run() -> tuple[list[RequestOutput], list[RequestOutput]]:
        direct: list[RequestOutput] = []
        async with AsyncLLM(dtype="float32", num_kv_blocks=64) as llm:
            checked = Checked(PROMPT, llm.engine.tokenizer(PROMPT)["input_ids"], params, None)
            decoder = DeltaDecoder(checked, fastest_decoder(llm.engine.tokenizer) if text_here else None)
            encoder, arrived = DeltaEncoder(params), []
            async for output in llm.generate(PROMPT, params):
                direct.append(output)
                if output.finished or not encoder.is_whole:
                    decoder.add(pickle.loads(pickle.dumps(encoder.encode(output))))
                    arrived.append(decoder.output())
        return direct, arrived

    return asyncio.run(run())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=8, temperature=0),
        SamplingParams(max_tokens=8, n=3, seed=1, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=12, temperature=0, stop=["girl"]),
    ],
    ids=["plain", "several with log-probabilities", "stop"],
)
def test_every_output_arrives_as_it_was(params: SamplingParams) -> None:
    direct, arrived = outputs_of(params)
    assert arrived == direct


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40, n=3, seed=1, temperature=3.0),  # half characters, too
        SamplingParams(max_tokens=20, seed=2, temperature=3.0, stop_token_ids=[*range(0, 3000, 5)]),
        SamplingParams(max_tokens=20, seed=2, temperature=3.0, stop_token_ids=[*range(0, 3000, 5)],
                       include_stop_str_in_output=True, skip_special_tokens=False),
        SamplingParams(max_tokens=8, n=2, best_of=4, seed=1),
    ],
    ids=["several", "without the stop token", "with it", "best_of"],
)  # fmt: skip
def test_the_text_that_the_client_makes_is_the_engine_s_after_each_token(params: SamplingParams) -> None:
    direct, arrived = outputs_of(params, text_here=True)
    assert any(choice.text for choice in arrived[-1].outputs)
    assert not params.stop_token_ids or arrived[-1].outputs[0].finish_reason == "stop"
    assert arrived == direct[-len(arrived) :]


def test_the_engine_makes_the_text_where_it_looks_for_stop_strings_and_only_there() -> None:
    for stop, is_engines in ((["girl"], True), ([], False)):
        checked = Checked(PROMPT, [1], SamplingParams(stop=stop), None)
        assert EngineCoreRequest("r", checked, checked.params).portable().params.detokenize is is_engines
        assert checked.params.detokenize


def test_where_the_winner_is_known_at_the_end_only_the_end_arrives() -> None:
    direct, arrived = outputs_of(SamplingParams(max_tokens=6, n=1, best_of=3, seed=1))
    assert arrived == [direct[-1]]


def test_what_has_been_handed_out_does_not_change_any_more() -> None:
    decoder = DeltaDecoder(Checked("p", [1], SamplingParams(), None))
    decoder.add(RequestOutput("r", None, [], outputs=[CompletionOutput(0, "a", [5])]))
    first = decoder.output()
    decoder.add(RequestOutput("r", None, [], outputs=[CompletionOutput(0, "b", [6])], finished=True))
    assert (first.outputs[0].text, first.outputs[0].token_ids) == ("a", [5])
    assert (decoder.output().outputs[0].text, decoder.output().outputs[0].token_ids) == ("ab", [5, 6])


def test_nothing_added_is_no_output() -> None:
    with pytest.raises(ValueError, match="differences must have come"):
        DeltaDecoder(Checked("p", [1], SamplingParams(), None)).output()


def test_a_compiled_grammar_is_not_pickled_and_its_text_is() -> None:
    pytest.importorskip("llguidance")
    llm = AsyncLLM(dtype="float32", num_kv_blocks=64)
    form = StructuredOutputsParams(choice=["yes", "no"])
    (checked,) = llm.engine.input_processor.check([[1]], SamplingParams(structured_outputs=form))
    request = pickle.loads(pickle.dumps(EngineCoreRequest("r", checked, checked.params).portable()))
    assert request.params.structured_outputs == form
    assert request.params.extra_args is None
