"""What programs for vLLM call on LLM and SamplingParams beside what the milestones have."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folovllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    LLMEngine,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)
from folovllm.engine.defaults import NEUTRAL, engine_options
from folovllm.engine.input_processor import InputProcessor
from folovllm.entrypoints.metrics_reader import Counter, Gauge
from folovllm.model_files import EMBEDDED_FOLDER

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", num_kv_blocks=512, max_logprobs=-1)


def one(outputs: list[Any]) -> str:
    return str(outputs[0].outputs[0].text)


def test_the_engine_has_both_names(llm: LLM) -> None:
    assert llm.llm_engine is llm.engine


def test_a_form_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="^structured_outputs must be StructuredOutputsParams, got "):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_token_ids_may_be_numpys(llm: LLM) -> None:
    ids = llm.get_tokenizer()("Once upon")["input_ids"]
    array = np.array(ids, np.int32)
    kinds: list[Any] = [ids, array, list(array), [array, array], TokensPrompt(prompt_token_ids=ids)]
    kinds += [{"prompt_token_ids": array}, [{"prompt_token_ids": list(array)}]]
    assert {one(llm.generate(prompts, GREEDY, use_tqdm=False)) for prompts in kinds} == {
        one(llm.generate("Once upon", GREEDY, use_tqdm=False))
    }


def test_what_has_been_checked_is_not_checked_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [one(llm.generate(prompt, GREEDY, use_tqdm=False)) for prompt in ("Once upon", "A dog")]
    checked = list(llm.engine.input_processor.check(["Once upon", {"prompt": "A dog"}], GREEDY))
    monkeypatch.setattr(InputProcessor, "check", lambda *_: pytest.fail("it is checked again"))
    assert [one(llm.generate(prompt, use_tqdm=False)) for prompt in checked] == expected
    with pytest.raises(ValueError, match="^sampling_params must be None beside a prompt that has been checked"):
        llm.generate(checked[0], GREEDY, use_tqdm=False)


def test_prompts_that_are_checked_together_have_room_of_their_own(llm: LLM) -> None:
    processor = llm.engine.input_processor
    short, long = processor.check([[5], [5] * 30], SamplingParams(max_tokens=None))
    assert (short.params.max_tokens, long.params.max_tokens) == (
        processor.max_model_len - 1,
        processor.max_model_len - 30,
    )


def test_numbers_that_are_no_ids_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt_token_ids"):
        llm.generate([np.array([1.5, 2.0])], GREEDY, use_tqdm=False)


def test_an_adapter_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="lora_request must be None"):
        llm.generate("a", GREEDY, use_tqdm=False, lora_request=[1])  # type: ignore[arg-type]


def test_the_chat_template_is_told_of_tools_and_calls(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"zone": "北京"}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    template = "{{ tools[0].function.name }} {{ messages[0].tool_calls[0].function.arguments.zone }} "
    template += "{{ messages[0].content ~ messages[1].tool_call_id ~ messages[1].content }}"
    (output,) = llm.chat(messages, GREEDY, tools=tools, chat_template=template, use_tqdm=False)
    assert output.prompt == "now 北京 anoon"
    call["function"] = {"name": "now", "arguments": "[1]"}
    with pytest.raises(ValueError, match=r"^messages\[0\].tool_calls\[0\] must be .*, the arguments a JSON object"):
        llm.chat(messages, GREEDY, tools=tools, chat_template=template, use_tqdm=False)


def test_a_checkpoint_s_template_for_tools_is_taken_where_there_are_tools(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    monkeypatch.setattr(llm.engine.tokenizer, "chat_template", named)
    messages, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "now"}}]
    prompts = [llm.chat(messages, GREEDY, tools=given, use_tqdm=False)[0].prompt for given in (None, tools)]
    assert prompts == ["plain", "now"]
    monkeypatch.setattr(llm.engine.tokenizer, "chat_template", {"rag": "other"})
    with pytest.raises(ValueError, match=r"^messages must suit the chat template of .* no default"):
        llm.chat(messages, GREEDY, use_tqdm=False)


def test_calls_of_a_history_are_those_that_there_are(llm: LLM) -> None:
    """An empty list is none, and the place that a stream gave a call is no part of it."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": "a", "tool_calls": calls} for calls in ([], None, [call])]
    template = "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls is defined else 'none' }} {% endfor %}"
    (output,) = llm.chat(messages, GREEDY, chat_template=template, use_tqdm=False)
    kept = '[{"id": "a", "type": "function", "function": {"name": "now", "arguments": {}}}]'
    assert output.prompt == f"none none {kept} "


def test_from_optional_takes_none_as_not_given() -> None:
    assert SamplingParams.from_optional(n=None, temperature=None, top_k=5) == SamplingParams(top_k=5)
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
    assert SamplingParams.from_optional(logit_bias={"7": 300, "8": -1}).logit_bias == {7: 100.0, 8: -1}
    with pytest.raises(ValueError, match="logit_bias must have token ids"):
        SamplingParams.from_optional(logit_bias={"x": 1})
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams.from_optional(temprature=1)


@pytest.mark.parametrize(
    "form", [{}, {"regex": "a", "choice": ["b"]}, {"json_object": False}, {"choice": []}, {"regex": 1}, {"json": 5}]
)
def test_a_form_has_exactly_one_field(form: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="structured_outputs"):
        StructuredOutputsParams(**form)


def test_options_may_be_spelt_as_vllm_does() -> None:
    assert engine_options({"scheduling_policy": "priority", "num_gpu_blocks_override": 7, "max_num_seqs": None}) == {
        "policy": "priority",
        "num_kv_blocks": 7,
    }
    with pytest.raises(ValueError, match="num_kv_blocks must agree"):
        engine_options({"num_gpu_blocks_override": 7, "num_kv_blocks": 8})


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_neutral_value_is_taken_and_another_refused(name: str) -> None:
    for value in NEUTRAL[name]:
        assert engine_options({name: value}) == {}
    for value in {"something", 2, True} - {*NEUTRAL[name]}:
        with pytest.raises(ValueError, match=f"^{name} must be "):
            engine_options({name: value})


def test_memory_for_the_cache_may_be_said_in_bytes() -> None:
    plain = LLM(num_kv_blocks=50)
    block = sum(each.nbytes for each in plain.engine.runner.kv_cache.tensors) // 51  # and the null block
    llm = LLM(kv_cache_memory_bytes=50 * block + block // 2, disable_log_stats=True)
    assert llm.engine.stats().kv_blocks_total == 50
    with pytest.raises(ValueError, match=f"^kv_cache_memory_bytes must hold a block, got {block - 1}: 16 tokens take"):
        LLM(kv_cache_memory_bytes=block - 1)
    with pytest.raises(ValueError, match="^kv_cache_memory_bytes must not be given beside num_kv_blocks"):
        LLM(kv_cache_memory_bytes=block, num_kv_blocks=1)


def test_engine_args_are_keywords_of_llm() -> None:
    args = EngineArgs(num_gpu_blocks_override=40, scheduling_policy="priority", pipeline_parallel_size=1)
    config = args.create_engine_config()
    assert (config.cache_config.num_kv_blocks, config.scheduler_config.policy) == (40, "priority")
    llm = LLM(**dataclasses.asdict(args))
    assert (llm.engine.stats().kv_blocks_total, llm.engine.config.scheduler_config.policy) == (40, "priority")
    assert LLMEngine.from_engine_args(args).stats().kv_blocks_total == 40
    assert AsyncLLM.from_engine_args(AsyncEngineArgs(num_kv_blocks=41)).stats().kv_blocks_total == 41
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(["--num-kv-blocks", "42", "--dtype", "float32"]))
    assert parsed == EngineArgs(num_kv_blocks=42, dtype="float32")
    with pytest.raises(ValueError, match="pipeline_parallel_size must be "):
        EngineArgs(pipeline_parallel_size=2).create_model_config()
    with pytest.raises(TypeError, match="max_num_sequences"):
        EngineArgs(max_num_sequences=2)


def test_metrics_have_vllm_s_names(llm: LLM) -> None:
    before = {metric.name: metric.value for metric in llm.get_metrics()}
    (output,) = llm.generate("Once upon", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    after = {metric.name: metric for metric in llm.get_metrics()}
    assert after["vllm:generation_tokens"].value - before["vllm:generation_tokens"] == 3
    assert isinstance(after["vllm:num_requests_running"], Gauge)
    assert isinstance(after["vllm:prompt_tokens"], Counter)
    assert after["vllm:prompt_tokens"].labels == {"model_name": "embedded"}
    times = output.metrics
    assert times is not None
    assert times.first_scheduled_time is not None
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time


@pytest.mark.parametrize("spaces", [True, False])
def test_special_tokens_have_no_space_but_their_own(llm: LLM, spaces: bool) -> None:
    eos = llm.get_tokenizer().eos_token_id
    params = SamplingParams(
        max_tokens=3, allowed_token_ids=[eos], ignore_eos=True, skip_special_tokens=False,
        spaces_between_special_tokens=spaces,
    )  # fmt: skip
    assert one(llm.generate("A", params, use_tqdm=False)) == 3 * llm.get_tokenizer().eos_token
    with pytest.raises(ValueError, match="^spaces_between_special_tokens must be"):
        SamplingParams(spaces_between_special_tokens=None)  # type: ignore[arg-type]


def test_an_option_of_no_one_is_refused() -> None:
    with pytest.raises(TypeError, match="tensor_paralel_size"):
        LLM(tensor_paralel_size=1)


def test_a_checkpoint_says_how_to_draw_from_it(tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED_FOLDER, tmp_path / "model")
    file = model / "generation_config.json"
    written = {**json.loads(file.read_text()), "temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 9}
    file.write_text(json.dumps(written))
    llm = LLM(str(model), num_kv_blocks=64)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_p=0.8, top_k=20, max_tokens=9)
    (output,) = llm.chat([{"role": "user", "content": "Tell me a long story."}], use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= 9
    plain = LLM(str(model), num_kv_blocks=64, generation_config="vllm")
    assert plain.get_default_sampling_params() == SamplingParams()
    file.write_text(json.dumps({**written, "top_p": 7}))
    with pytest.raises(ValueError, match="top_p must be in"):
        LLM(str(model), num_kv_blocks=64).get_default_sampling_params()


def test_what_a_user_got_wrong_is_raised_without_the_errors_that_led_to_it(tmp_path: Path) -> None:
    """The text says all of it; a traceback in a traceback would bury it."""
    llm = LLM(dtype="float32", num_kv_blocks=64)
    message = [{"role": "user", "content": "a"}]
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "tokenizer.json").write_text("{}")
    wrong: list[Callable[[], Any]] = [
        partial(LLM, str(tmp_path), load_format="dummy"),
        partial(llm.chat, message, chat_template="{{ 1 / 0 }}"),
        partial(llm.chat, message, chat_template="{% if"),
    ]
    for call in wrong:
        with pytest.raises(ValueError) as raised:
            call()
        assert "Traceback" not in "".join(traceback.format_exception(raised.value)).removeprefix("Traceback")
