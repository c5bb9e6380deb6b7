"""What programs for vLLM call on LLM and SamplingParams beside what the milestones have."""

from __future__ import annotations

import asyncio
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
    AsyncLLM,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)
from folovllm.engine.builder.defaults import engine_options
from folovllm.engine.input_processor import InputProcessor
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.entrypoints.metrics_reader import Counter, Gauge
from folovllm.model_loader.model_files import EMBEDDED_FOLDER

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", num_kv_blocks=512, max_logprobs=-1)


def one(outputs: list[Any]) -> str:
    return str(outputs[0].outputs[0].text)


def test_vllms_names_of_parts_lead_to_ours(llm: LLM) -> None:
    assert llm.llm_engine is llm.engine
    assert llm.llm_engine.vllm_config is llm.engine.config


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_what_vllm_awaits_may_be_awaited_and_need_not(in_a_loop: bool, llm: LLM) -> None:
    assert llm.reset_prefix_cache(reset_running_requests=False) is True
    assert llm.engine.reset_prefix_cache() is True
    client = AsyncLLM(num_kv_blocks=64)

    async def use() -> list[Any]:
        async for _ in client.generate("a", GREEDY, "mine"):
            break
        return [await client.abort("mine"), await client.reset_prefix_cache(), await client.shutdown()]

    if in_a_loop:
        assert asyncio.run(use()) == [True] * 3
    else:
        client.reset_prefix_cache()
        client.abort("mine")
        client.shutdown()
        assert client._busy._thread._shutdown
        assert asyncio.run(client.shutdown()) is True
    assert client.is_closed
    assert client._busy._thread._shutdown


def test_fields_of_config_json_may_be_overridden(tmp_path: Path) -> None:
    """Hugging Face, with the same written into the file, is the oracle."""
    from transformers import AutoModelForCausalLM

    written = json.loads((EMBEDDED_FOLDER / "config.json").read_text())
    turned = {"rope_parameters": {**written["rope_parameters"], "rope_theta": 50.0}, "max_position_embeddings": 64}
    model = shutil.copytree(EMBEDDED_FOLDER, tmp_path / "model")
    (model / "config.json").write_text(json.dumps({**written, **turned}))
    llm = LLM(dtype="float32", num_kv_blocks=64, hf_overrides=turned)
    ids = llm.get_tokenizer()("Once upon a time there was", return_tensors="pt").input_ids
    oracle = AutoModelForCausalLM.from_pretrained(model, dtype="float32").generate(
        ids, do_sample=False, max_new_tokens=8, eos_token_id=-1
    )
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate([ids[0].tolist()], params, use_tqdm=False)
    assert output.outputs[0].token_ids == oracle[0, ids.shape[1] :].tolist()
    assert llm.engine.max_model_len == 64
    with pytest.raises(ValueError, match="hf_overrides must have fields of this model's config.json, got 'rope_tetha'"):
        LLM(num_kv_blocks=64, hf_overrides={"rope_tetha": 1.0})
    with pytest.raises(ValueError, match="^hf_overrides must be a dict of fields of config.json, got 'x'"):
        LLM(hf_overrides="x")


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
    with pytest.raises(ValueError, match="lora_request must be .*None"):
        llm.generate("a", GREEDY, use_tqdm=False, lora_request=[1])


def test_a_chat_template_may_be_the_llms_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_chat_template", "{{ messages[0].content }}!")
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, chat_template_content_format="string", priority=0)
    assert output.prompt == "Hi!"
    with pytest.raises(
        ValueError, match="^chat_template_content_format must be 'auto' or 'string', got 'openai'; vLLM"
    ):
        llm.chat(messages, GREEDY, chat_template_content_format="openai")


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


def test_memory_for_the_cache_may_be_said_in_bytes() -> None:
    plain = LLM(num_kv_blocks=50)
    block = sum(each.nbytes for each in plain.engine.runner.kv_cache.tensors) // 51  # and the null block
    llm = LLM(kv_cache_memory_bytes=50 * block + block // 2, disable_log_stats=True)
    assert llm.engine.stats().kv_blocks_total == 50
    with pytest.raises(ValueError, match=f"^kv_cache_memory_bytes must hold a block, got {block - 1}: 16 tokens take"):
        LLM(kv_cache_memory_bytes=block - 1)
    with pytest.raises(ValueError, match="^kv_cache_memory_bytes must not be given beside num_kv_blocks"):
        LLM(kv_cache_memory_bytes=block, num_kv_blocks=1)


def test_metrics_have_vllm_s_names(llm: LLM) -> None:
    before = {metric.name: metric.value for metric in llm.get_metrics()}
    (output,) = llm.generate("Once upon", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    after = {metric.name: metric for metric in llm.get_metrics()}
    assert after["vllm:generation_tokens"].value - before["vllm:generation_tokens"] == 3
    assert isinstance(after["vllm:num_requests_running"], Gauge)
    assert isinstance(after["vllm:prompt_tokens"], Counter)
    assert after["vllm:prompt_tokens"].labels == {"model_name": "embedded", "engine": "0"}
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


def test_a_checkpoint_says_how_to_draw_from_it(tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED_FOLDER, tmp_path / "model")
    file = model / "generation_config.json"
    written = {**json.loads(file.read_text()), "temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 9}
    file.write_text(json.dumps(written))
    llm = LLM(str(model), num_kv_blocks=64)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_p=0.8, top_k=20, max_tokens=9)
    (output,) = llm.chat([{"role": "user", "content": "Tell me a long story."}], use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= 9
    plain = LLM(num_kv_blocks=64, generation_config="vllm", override_generation_config={"max_new_tokens": 3})
    assert plain.get_default_sampling_params() == SamplingParams(max_tokens=3)
    config = plain.engine.model_config
    assert load_generation_defaults(config, str(model), {"top_k": 5, "max_tokens": 2})["max_tokens"] == 2
    assert load_generation_defaults(config, str(model)) == load_generation_defaults(llm.engine.model_config)
    for source, overrides, wrong in (
        ("auto", {"top_z": 1}, "override_generation_config"),
        ("/none", {}, "generation_c"),
    ):
        with pytest.raises(ValueError, match=f"{wrong}.* must "):
            load_generation_defaults(config, source, overrides)
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
