"""Bad input: each is refused by itself with a message that names it, and the engine serves the next."""

from __future__ import annotations

import pytest
import torch

from folovllm import CacheConfig, EngineConfig, LLMEngine, ModelConfig
from folovllm.errors import PromptTooLongError
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import VOCAB_SIZE, assert_empty, params, run, scripted

REFUSED = {
    "empty prompt": ([], {}, ValueError, "prompt must have at least one token"),
    "id too large": ([VOCAB_SIZE], {}, ValueError, r"prompt_token_ids must be in \[0, 258\), got 258"),
    "negative id": ([-1], {}, ValueError, r"prompt_token_ids must be in \[0, 258\), got -1"),
    "no integer": ([1, "two"], {}, ValueError, "prompt_token_ids must be integers, got 'two'"),
    "a number": (7, {}, ValueError, "prompt must be a str, a list of token ids or"),
    "bytes": (b"text", {}, ValueError, "prompt must be a str, a list of token ids or"),
    "ids that are none": ({"prompt_token_ids": None}, {}, ValueError, "prompt_token_ids must be a list of token ids"),
    "ids that are text": ({"prompt_token_ids": "1"}, {}, ValueError, "prompt_token_ids must be a list of token ids"),
    "wrong key": ({"tokens": [1]}, {}, ValueError, "prompt must have the key 'prompt_token_ids', got the keys"),
    "too long": ([1] * 64, {}, PromptTooLongError, "prompt has 64 tokens, but max_model_len is 64"),
    "bias outside": ([1], {"logit_bias": {999: 1.0}}, ValueError, "logit_bias"),
    "allowed outside": ([1], {"allowed_token_ids": [1, 258]}, ValueError, "allowed_token_ids"),
    "stop id outside": ([1], {"stop_token_ids": [258]}, ValueError, "stop_token_ids"),
    "unknown extra": ([1], {"extra_args": {"sigmoyd": 1}}, ValueError, "extra_args"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_refused_and_leaves_nothing(case, engine):
    prompt, kwargs, error, text = REFUSED[case]
    engine.add_request("before", "x", scripted("fine"))
    with pytest.raises(error, match=text):
        engine.add_request("bad", prompt, params(**kwargs))
    engine.add_request("after", "x", scripted("fine"))
    done, _ = run(engine)
    assert {name: out.outputs[0].text for name, out in done.items()} == {"before": "fine", "after": "fine"}


def test_a_request_id_in_use_is_refused(engine):
    engine.add_request("r", "x", params())
    with pytest.raises(ValueError, match="request_id 'r' belongs to an unfinished request"):
        engine.add_request("r", "y", params())


def test_streaming_a_best_of_request_is_refused(engine):
    with pytest.raises(ValueError, match=r"best_of \(3\) must equal n \(1\) when streaming"):
        engine.generate_stream("x", params(best_of=3))
    with pytest.raises(ValueError, match="sampling_params must be SamplingParams"):
        engine.generate_stream("x", {"n": 1})


def test_changing_the_callers_params_later_changes_nothing(engine):
    mine = params(max_tokens=3, ignore_eos=True)
    engine.add_request("r", "x", mine)
    mine.max_tokens = 30
    assert len(run(engine)[0]["r"].outputs[0].token_ids) == 3


@register_logits_processor("explode")
class Explode(LogitsProcessor):
    def apply(self, logits):
        raise RuntimeError("boom")


def test_a_failing_logits_processor_takes_only_its_own_request_down(engine):
    engine.add_request("bad", "x", params(extra_args={"explode": True}))
    engine.add_request("good", "x", params(max_tokens=3, ignore_eos=True))
    with pytest.raises(RuntimeError, match="boom"):
        engine.step()
    assert len(run(engine)[0]["good"].outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("a model",), "^config must be an EngineConfig or a ModelConfig, got 'a model'$"),
        ((EngineConfig(ModelConfig("m")), CacheConfig()), "^cache_config and scheduler_config must not be given: "),
    ],
)
def test_an_engine_ignores_none_of_its_arguments(args, text):
    with pytest.raises(ValueError, match=text):
        LLMEngine(*args)


def test_dummy_weights_need_a_configuration_only(tmp_path, text_model_folder):
    (tmp_path / "config.json").write_bytes((text_model_folder / "config.json").read_bytes())
    config = ModelConfig(str(tmp_path), load_format="dummy", skip_tokenizer_init=True, device="cpu", dtype="bfloat16")
    engine = LLMEngine(config)
    engine.add_request("r", [1, 2, 3], params(max_tokens=4, ignore_eos=True))
    assert len(run(engine)[0]["r"].outputs[0].token_ids) == 4
    assert engine.runner.kv_cache.layers[0].kv_cache.dtype == torch.bfloat16


def test_text_without_a_tokenizer_is_refused(text_model_folder):
    engine = LLMEngine(ModelConfig(str(text_model_folder), skip_tokenizer_init=True, device="cpu"))
    with pytest.raises(ValueError, match="prompt is text, but skip_tokenizer_init"):
        engine.add_request("r", "text", params())
    with pytest.raises(ValueError, match="stop and bad_words are text"):
        engine.add_request("r", [1], params(stop="x"))
    engine.add_request("r", [1], params(max_tokens=2, ignore_eos=True))
    assert run(engine)[0]["r"].outputs[0].text == ""


@pytest.mark.parametrize("request_id", [["r"], {"r": 1}, 7, None, b"r", "", " "], ids=repr)
def test_an_id_that_is_no_name_is_refused_by_name(engine, request_id):
    for call in (lambda: engine.add_request(request_id, "x", params()), lambda: engine.abort_request(request_id)):
        with pytest.raises(ValueError, match=r"^request_id must (be a string|not be empty), got "):
            call()
    assert_empty(engine)
