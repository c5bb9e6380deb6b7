"""Bad input: each is refused by itself with a message that names it, and the engine serves the next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import LLM, CacheConfig, EngineConfig, LLMEngine, ModelConfig, milestone
from folovllm.errors import PromptTooLongError
from folovllm.reserved import refuse_reserved_fields
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


def test_running_out_of_memory_for_the_cache_takes_one_request_down(engine, monkeypatch):
    def reserve_one_layer(shape, _empty=torch.empty, _left=[1], **kwargs):  # noqa: B006  counts its calls
        if _left[0] == 0:
            raise RuntimeError("out of memory")
        _left[0] -= 1
        return _empty(shape, **kwargs)

    short, long = (params(max_tokens=n, ignore_eos=True) for n in (3, 50))
    engine.add_request("first", "x", short)
    run(engine)
    engine.add_request("long", "x", long)
    with monkeypatch.context() as patch:
        patch.setattr("folovllm.worker.kv_cache.torch.empty", reserve_one_layer)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(engine)
    engine.add_request("next", "x", short)
    assert len(run(engine)[0]["next"].outputs[0].token_ids) == 3


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


WAIT = {  # field: another value than its default, and the milestone from which on it is read
    "block_size": (32, 3), "num_kv_blocks": (100, 3), "gpu_memory_utilization": (0.5, 3), "swap_space": (1.0, 3),
    "preemption_mode": ("swap", 3), "max_num_batched_tokens": (512, 2), "max_num_seqs": (8, 2),
    "policy": ("priority", 2), "enforce_eager": (True, 4), "async_scheduling": (True, 4),
    "enable_chunked_prefill": (True, 5), "long_prefill_token_threshold": (64, 5), "max_num_partial_prefills": (2, 5),
    "enable_prefix_caching": (True, 6), "max_n": (4, 1), "max_logprobs": (5, 1), "batch_invariant": (True, 6),
}  # fmt: skip


@pytest.mark.parametrize("field", WAIT)
def test_a_field_is_refused_until_its_milestone(field, text_model_folder, monkeypatch):
    value, since = WAIT[field]
    config = EngineConfig.from_kwargs(model=str(text_model_folder), **{field: value})
    monkeypatch.setattr(milestone, "MILESTONE", since)
    refuse_reserved_fields(config)
    monkeypatch.setattr(milestone, "MILESTONE", since - 1)
    with pytest.raises(NotImplementedError, match=rf"^{field} is not supported yet, got .*: it comes with M{since} \("):
        LLMEngine(config)


def test_the_tree_knows_its_milestone():
    folders = Path(__file__).parents[1].glob("m[0-9]*")
    assert max(int(folder.name[1:]) for folder in folders) == milestone.MILESTONE


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


def test_a_failure_reaches_the_one_who_asked_and_nobody_else(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu")
    bad = params(extra_args={"explode": True})
    stream = llm.engine.generate_stream("x", bad)
    llm.engine.add_request("bad", "x", bad)
    assert len(llm.generate("good", params(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids) == 3
    with pytest.raises(RuntimeError, match="boom"):
        next(stream)
    assert llm.engine.has_unfinished_requests()
    with pytest.raises(RuntimeError, match="boom"):
        llm.engine.step()
    assert_empty(llm.engine)
