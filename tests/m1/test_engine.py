"""The engine around a model: stop conditions, streaming, aborts, several sequences, errors.

Where the tokens matter and not the model, a scripted runner says them.
"""

from __future__ import annotations

import pytest
import torch

from folovllm import EngineConfig, LLMEngine, ModelConfig, SamplingParams
from folovllm.errors import PromptTooLongError
from folovllm.request import SequenceStatus
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import EOS, VOCAB_SIZE, ScriptedRunner, make_text_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=64)


@pytest.fixture
def engine(folder):
    return LLMEngine(ModelConfig(str(folder), dtype="float32", device="cpu"))


def run(engine):
    """Step to the end: {request_id: final output}, and every output on the way."""
    seen = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    return {output.request_id: output for output in seen if output.finished}, seen


def say(engine, script, params, prompt="hi"):
    """The completion of a sequence that says `script`."""
    ScriptedRunner(engine, script)
    engine.add_request("r", prompt, params)
    return run(engine)[0]["r"].outputs[0]


def params(**kwargs):
    return SamplingParams(**{"max_tokens": 40, **kwargs})


# -- how a sequence ends ----------------------------------------------------------------------------------------


def test_eos_stops_and_is_not_part_of_the_text(engine):
    completion = say(engine, "done", params())
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("done", "stop", None)
    assert completion.token_ids == [*b"done", EOS]


def test_ignore_eos_goes_on_to_max_tokens(engine):
    completion = say(engine, "done", params(ignore_eos=True, max_tokens=9))
    assert (len(completion.token_ids), completion.finish_reason) == (9, "length")


def test_max_tokens_is_a_finish_by_length(engine):
    completion = say(engine, "a long text", params(max_tokens=6))
    assert (completion.text, completion.finish_reason) == ("a long", "length")


def test_max_tokens_none_goes_on_to_max_model_len(engine):
    completion = say(engine, "x" * 200, params(max_tokens=None), prompt="1234")
    num_prompt = len(engine.tokenizer("1234")["input_ids"])
    assert len(completion.token_ids) == 64 - num_prompt
    assert completion.finish_reason == "length"


def test_an_eos_in_the_last_place_is_a_stop_not_a_length(engine):
    assert say(engine, "abc", params(max_tokens=4)).finish_reason == "stop"


def test_a_stop_token_id_is_the_stop_reason_and_is_not_part_of_the_text(engine):
    completion = say(engine, "one. two", params(stop_token_ids=[ord(".")]))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("one", "stop", ord("."))
    assert completion.token_ids == [*b"one."]


def test_a_stop_token_is_part_of_the_text_when_asked_for(engine):
    assert say(engine, "one. two", params(stop_token_ids=[46], include_stop_str_in_output=True)).text == "one."


def test_a_stop_string_is_seen_across_tokens_and_cut(engine):
    completion = say(engine, "story THE END. more", params(stop="THE END"))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("story ", "stop", "THE END")


def test_a_stop_string_stays_when_asked_for(engine):
    completion = say(engine, "story END. more", params(stop=["END"], include_stop_str_in_output=True))
    assert completion.text == "story END"


def test_a_stop_string_of_many_bytes_a_character(engine):
    assert say(engine, "你好。再见", params(stop="。")).text == "你好"


def test_the_earliest_of_two_stop_strings_cuts(engine):
    # Both become complete with the same token.
    completion = say(engine, "abcd", params(stop=["cd", "bcd"]))
    assert (completion.text, completion.stop_reason) == ("a", "bcd")


def test_a_stop_string_completed_by_the_last_token_is_a_stop(engine):
    completion = say(engine, "abcEND", params(stop="END", max_tokens=6))
    assert (completion.text, completion.finish_reason) == ("abc", "stop")


def test_a_stop_string_before_min_tokens_does_not_stop(engine):
    completion = say(engine, "a.b.c", params(stop=".", min_tokens=3))
    assert completion.text == "a.b"


def test_what_was_held_back_comes_out_when_no_stop_string_follows(engine):
    assert say(engine, "the E", params(stop="END")).text == "the E"


def test_text_is_held_back_while_it_could_become_a_stop_string(engine):
    ScriptedRunner(engine, "ab EN. END")
    texts = [out.outputs[0].text for out in engine.generate_stream("x", params(stop="END"))]
    # Token by token; the last two characters wait, as they could be the "EN" of "END".
    assert texts == ["", "", "a", "b", " ", "E", "N", ".", " ", ""]


def test_half_a_character_is_never_streamed(engine):
    ScriptedRunner(engine, "火🔥!")
    assert [out.outputs[0].text for out in engine.generate_stream("x", params())] == [
        "", "", "火", "", "", "", "🔥", "!", "",
    ]  # fmt: skip


def test_a_character_cut_by_max_tokens_shows_as_a_replacement(engine):
    assert say(engine, "a🔥", params(max_tokens=3)).text == "a\ufffd"


def test_detokenize_false_leaves_the_text_empty(engine):
    completion = say(engine, "abc", params(detokenize=False))
    assert (completion.text, completion.token_ids) == ("", [*b"abc", EOS])


# -- several sequences ------------------------------------------------------------------------------------------


def test_n_sequences_end_each_in_its_own_way(engine):
    ScriptedRunner(engine, "first", "second one")
    engine.add_request("r", "x", params(n=2, max_tokens=8))
    output = run(engine)[0]["r"]
    assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [
        (0, "first", "stop"),
        (1, "second o", "length"),
    ]


def test_a_request_of_n_is_finished_when_all_are(engine):
    ScriptedRunner(engine, "a", "bb", "ccc")
    engine.add_request("r", "x", params(n=3))
    _, seen = run(engine)
    assert [out.finished for out in seen] == [False] * (len(seen) - 1) + [True]


def test_best_of_returns_the_n_most_likely_and_ignores_the_rest(engine):
    engine.add_request("r", "x", params(n=2, best_of=5, seed=1, max_tokens=6, ignore_eos=True))
    request = engine._requests["r"]
    output = run(engine)[0]["r"]
    ranked = sorted((seq.cumulative_logprob for seq in request.sequences), reverse=True)
    assert [c.cumulative_logprob for c in output.outputs] == ranked[:2]
    assert [c.index for c in output.outputs] == [0, 1]
    assert len({tuple(c.token_ids) for c in output.outputs}) == 2
    statuses = [seq.status for seq in request.sequences]
    assert statuses.count(SequenceStatus.FINISHED_IGNORED) == 3


def test_sequence_i_of_n_draws_as_a_request_with_seed_plus_i(engine):
    engine.add_request("n", "x", params(n=3, seed=10, max_tokens=8))
    for i in range(3):
        engine.add_request(f"one{i}", "x", params(seed=10 + i, max_tokens=8))
    done, _ = run(engine)
    assert [c.token_ids for c in done["n"].outputs] == [done[f"one{i}"].outputs[0].token_ids for i in range(3)]


def test_a_seeded_request_says_the_same_whatever_ran_before(engine):
    def tokens(request_id):
        return run(engine)[0][request_id].outputs[0].token_ids

    engine.add_request("a", "x", params(seed=4))
    alone = tokens("a")
    engine.add_request("noise", "y", params())
    engine.add_request("b", "x", params(seed=4))
    assert tokens("b") == alone
    assert len(set(alone)) > 5  # the draws differ from step to step


def test_a_seed_does_not_leak_into_unseeded_requests(engine):
    texts = set()
    for i in range(4):
        engine.add_request(f"seeded{i}", "x", params(seed=1, max_tokens=1))
        engine.add_request(f"free{i}", "x", params(max_tokens=12, ignore_eos=True))
        texts.add(tuple(run(engine)[0][f"free{i}"].outputs[0].token_ids))
    assert len(texts) == 4


# -- streams, aborts, order -------------------------------------------------------------------------------------


def test_stream_deltas_join_to_the_whole(engine):
    engine.add_request("whole", "x", params(seed=2, logprobs=1))
    whole = run(engine)[0]["whole"].outputs[0]
    pieces = [out.outputs[0] for out in engine.generate_stream("x", params(seed=2, logprobs=1))]
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert [entry for p in pieces for entry in p.logprobs] == whole.logprobs
    assert all(len(p.token_ids) == 1 for p in pieces)
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_streams_and_requests_side_by_side_lose_nothing(engine):
    ScriptedRunner(engine, "hello")
    engine.add_request("r", "x", params())
    first, second = engine.generate_stream("y", params()), engine.generate_stream("z", params())
    text = next(second).outputs[0].text  # drives the engine through everybody else's steps
    text += "".join(out.outputs[0].text for out in second)
    assert text == "hello"
    assert "".join(out.outputs[0].text for out in first) == "hello"
    assert run(engine)[0]["r"].outputs[0].text == "hello"
    assert not engine.has_unfinished_requests()


def test_closing_a_stream_aborts_its_request(engine):
    stream = engine.generate_stream("x", params())
    next(stream)
    stream.close()
    assert not engine.has_unfinished_requests()
    assert engine.output_processor._sequences == {}


def test_requests_run_in_the_order_of_arrival(engine):
    for name in ("c", "a", "b"):
        engine.add_request(name, "x", params(max_tokens=2))
    assert list(run(engine)[0]) == ["c", "a", "b"]


def test_an_aborted_request_is_silent_and_the_others_go_on(engine):
    ScriptedRunner(engine, "text")
    for name in ("a", "b"):
        engine.add_request(name, "x", params())
    engine.step()
    request = engine._requests["a"]
    engine.abort_request("a")
    engine.abort_request("a")  # twice is no error, and neither is a name nobody has
    engine.abort_request("nobody")
    done, seen = run(engine)
    assert list(done) == ["b"]
    assert {out.request_id for out in seen} == {"b"}
    assert request.sequences[0].status is SequenceStatus.FINISHED_ABORTED


def test_a_finished_engine_holds_nothing(engine):
    engine.add_request("r", "x", params(n=3, seed=0))
    run(engine)
    assert (engine._requests, engine._outputs, engine.output_processor._sequences) == ({}, [], {})


def test_metrics_are_in_order(engine):
    engine.add_request("r", "x", params(max_tokens=5, ignore_eos=True))
    metrics = run(engine)[0]["r"].metrics
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.num_output_tokens == 5
    assert metrics.ttft >= 0
    assert metrics.tpot == pytest.approx((metrics.finished_time - metrics.first_token_time) / 4)


# -- errors: each is refused by itself, and the engine serves the next ------------------------------------------


REFUSED = {
    "empty prompt": ([], {}, ValueError, "prompt must have at least one token"),
    "id too large": ([VOCAB_SIZE], {}, ValueError, r"prompt_token_ids must be in \[0, 258\), got 258"),
    "negative id": ([-1], {}, ValueError, r"prompt_token_ids must be in \[0, 258\), got -1"),
    "no integer": ([1, "two"], {}, TypeError, "prompt_token_ids must be integers, got 'two'"),
    "a number": (7, {}, TypeError, "prompt must be a str, a list of token ids or"),
    "wrong key": ({"tokens": [1]}, {}, ValueError, "prompt must have the key 'prompt_token_ids', got the keys"),
    "too long": ([1] * 64, {}, PromptTooLongError, "prompt has 64 tokens, but max_model_len is 64"),
    "beams": ([1], {"use_beam_search": True, "best_of": 2}, NotImplementedError, "Beam search is not supported"),
    "bias outside": ([1], {"logit_bias": {999: 1.0}}, ValueError, "logit_bias"),
    "allowed outside": ([1], {"allowed_token_ids": [1, 258]}, ValueError, "allowed_token_ids"),
    "stop id outside": ([1], {"stop_token_ids": [258]}, ValueError, "stop_token_ids"),
    "unknown extra": ([1], {"extra_args": {"sigmoyd": 1}}, ValueError, "extra_args"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_refused_and_leaves_nothing(case, engine):
    prompt, kwargs, error, text = REFUSED[case]
    ScriptedRunner(engine, "fine")
    engine.add_request("before", "x", params())
    with pytest.raises(error, match=text):
        engine.add_request("bad", prompt, params(**kwargs))
    engine.add_request("after", "x", params())
    done, _ = run(engine)
    assert {name: out.outputs[0].text for name, out in done.items()} == {"before": "fine", "after": "fine"}


def test_a_request_id_in_use_is_refused(engine):
    engine.add_request("r", "x", params())
    with pytest.raises(ValueError, match="request_id 'r' belongs to an unfinished request"):
        engine.add_request("r", "y", params())


def test_streaming_a_best_of_request_is_refused(engine):
    with pytest.raises(ValueError, match=r"best_of \(3\) must equal n \(1\) when streaming"):
        engine.generate_stream("x", params(best_of=3))


def test_changing_the_callers_params_later_changes_nothing(engine):
    mine = params(max_tokens=3, ignore_eos=True)
    engine.add_request("r", "x", mine)
    mine.max_tokens = 30
    assert len(run(engine)[0]["r"].outputs[0].token_ids) == 3


def test_a_failing_logits_processor_takes_only_its_own_request_down(engine):
    @register_logits_processor("explode")
    class Explode(LogitsProcessor):
        def apply(self, logits):
            raise RuntimeError("boom")

    engine.add_request("bad", "x", params(extra_args={"explode": True}))
    engine.add_request("good", "x", params(max_tokens=3, ignore_eos=True))
    with pytest.raises(RuntimeError, match="boom"):
        engine.step()
    assert len(run(engine)[0]["good"].outputs[0].token_ids) == 3


RESERVED = {
    "block_size": 32, "num_kv_blocks": 100, "gpu_memory_utilization": 0.5, "swap_space": 1.0,
    "preemption_mode": "swap", "max_num_batched_tokens": 512, "max_num_seqs": 8, "policy": "priority",
    "enforce_eager": True, "enable_chunked_prefill": True, "enable_prefix_caching": True,
}  # fmt: skip


@pytest.mark.parametrize("field", RESERVED)
def test_a_field_that_waits_for_its_milestone_is_refused(field, folder):
    config = EngineConfig.from_kwargs(model=str(folder), **{field: RESERVED[field]})
    with pytest.raises(NotImplementedError, match=rf"{field} is not supported yet, got .*: it comes with M\d"):
        LLMEngine(config)


def test_dummy_weights_need_a_configuration_only(tmp_path, folder):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    config = ModelConfig(str(tmp_path), load_format="dummy", skip_tokenizer_init=True, device="cpu", dtype="bfloat16")
    engine = LLMEngine(config)
    engine.add_request("r", [1, 2, 3], params(max_tokens=4, ignore_eos=True))
    assert len(run(engine)[0]["r"].outputs[0].token_ids) == 4
    assert engine.runner.kv_cache.layers[0].kv_cache.dtype == torch.bfloat16


def test_text_without_a_tokenizer_is_refused(folder):
    engine = LLMEngine(ModelConfig(str(folder), skip_tokenizer_init=True, device="cpu"))
    with pytest.raises(ValueError, match="prompt is text, but skip_tokenizer_init"):
        engine.add_request("r", "text", params())
    with pytest.raises(ValueError, match="stop and bad_words are text"):
        engine.add_request("r", [1], params(stop="x"))
    engine.add_request("r", [1], params(max_tokens=2, ignore_eos=True))
    assert run(engine)[0]["r"].outputs[0].text == ""


def test_a_preallocated_cache_never_grows_while_a_sequence_runs(engine):
    engine.add_request("r", "x", params(max_tokens=20, ignore_eos=True))
    engine.step()
    before = [layer.kv_cache.data_ptr() for layer in engine.runner.kv_cache.layers]
    run(engine)
    assert [layer.kv_cache.data_ptr() for layer in engine.runner.kv_cache.layers] == before
