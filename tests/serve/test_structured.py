"""Texts that are held to a form: always, with every other setting, offline and over HTTP."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, SecretStr

from folovllm import LLM, SamplingParams, StructuredOutputsParams
from folovllm.sample.structured.grammars import Grammar
from folovllm.serving.reasoning import after_thoughts

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "名字": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["猫", "狗", "bird", None, 3]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "weight": {"type": "number", "minimum": 0.5, "maximum": 99.5},
        "tags": {"type": "array", "items": {"enum": ["calm", "一只老猫", 'a "quoted" word']}, "maxItems": 3},
        "owner": {
            "type": "object",
            "properties": {"city": {"enum": ["杭州", "Oslo"]}, "verified": {"type": "boolean"}},
            "required": ["city", "verified"],
            "additionalProperties": False,
        },
    },
    "required": ["名字", "kind", "age", "weight", "tags", "owner"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a pet. 说说一只宠物。"}]
FORMS: dict[str, tuple[StructuredOutputsParams, str]] = {
    "regex": (StructuredOutputsParams(regex=r"[a-z]{3,8} = -?\d{1,4}"), r"[a-z]{3,8} = -?\d{1,4}"),
    "choice": (StructuredOutputsParams(choice=["yes", "no", "也许"]), "yes|no|也许"),
    "lark": (StructuredOutputsParams(grammar='start: "a" start "b" | "c"'), "a*cb*"),
    "gbnf": (StructuredOutputsParams(grammar='root ::= "x" [0-9] [0-9] "!"'), r"x\d\d!"),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_num_seqs=64, num_kv_blocks=2048)


def texts(llm: LLM, **params: Any) -> list[str]:
    (output,) = llm.chat(QUESTION, SamplingParams(**{"max_tokens": 300, "temperature": 1.0, **params}), use_tqdm=False)
    assert {choice.finish_reason for choice in output.outputs} == {"stop"}
    return [choice.text for choice in output.outputs]


def test_a_schema_is_kept_200_times_of_200(llm: LLM) -> None:
    form = StructuredOutputsParams(json=SCHEMA)
    found = [text for seed in (0, 1000) for text in texts(llm, n=100, seed=seed, structured_outputs=form)]
    assert len(found) == 200
    for text in found:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_are_kept(llm: LLM, name: str) -> None:
    form, pattern = FORMS[name]
    for text in texts(llm, n=20, seed=1, structured_outputs=form):
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "more",
    [
        {"min_tokens": 50},
        {"temperature": 0.3, "top_k": 5, "min_p": 0.1},
        {"top_p": 0.5, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
        {"logit_bias": {2: 100.0}},  # the end, as early as it may come
        {"ignore_eos": True, "stop": ["]"], "include_stop_str_in_output": True},
        {"logprobs": 5, "logprobs_mode": "processed"},
        {"n": 2, "best_of": 5},
    ],
    ids=str,
)
def test_a_form_is_kept_beside_other_settings(llm: LLM, more: dict[str, Any]) -> None:
    form = StructuredOutputsParams(regex=r"\[[0-9]{2,5}\]")
    for text in texts(llm, **{"seed": 3, "structured_outputs": form, **more}):
        assert re.fullmatch(r"\[[0-9]{2,5}\]", text)


def test_a_text_that_was_cut_is_valid_so_far(llm: LLM) -> None:
    params = SamplingParams(n=20, seed=1, max_tokens=5, structured_outputs=StructuredOutputsParams(regex="(ab){40}"))
    (output,) = llm.chat(QUESTION, params, use_tqdm=False)
    for choice in output.outputs:
        assert choice.finish_reason == "length"
        assert ("ab" * 40).startswith(choice.text)


@pytest.mark.parametrize(
    "engine",
    [
        {"num_kv_blocks": 40, "block_size": 4, "preemption_mode": "recompute"},
        {"num_kv_blocks": 40, "block_size": 4, "preemption_mode": "swap"},
        {"async_scheduling": True},
        {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 8, "max_num_seqs": 6},
        {"enable_prefix_caching": False, "enable_chunked_prefill": False},
        {"tensor_parallel_size": 2},
    ],
    ids=str,
)
def test_the_schedule_changes_no_token(llm: LLM, engine: dict[str, Any]) -> None:
    """Preempted, chunked, ahead, on two ranks or not: beside plain neighbours, the same seeds draw the same texts."""
    other = LLM(**{"dtype": "float32", "max_model_len": 128, **engine})
    form = StructuredOutputsParams(regex=r"[a-z ]{30,60}!")
    params = [
        SamplingParams(seed=place, max_tokens=60, structured_outputs=form if place % 2 else None) for place in range(8)
    ]
    prompts = [f"Once upon a time there were {place} cats" for place in range(8)]
    expected = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
    assert [output.outputs[0].text for output in other.generate(prompts, params, use_tqdm=False)] == expected
    if "preemption_mode" in engine:
        assert other.engine.stats().preemptions > 0


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "(("}, "structured_outputs.regex must be something that can be compiled"),
        ({"json": "{"}, "structured_outputs.json must be JSON"),
        ({"json": "[" * 60_000}, "structured_outputs.json must not be nested so deeply"),
        ({"json": "[]"}, "structured_outputs.json must be a JSON schema"),
        ({"json": {"type": "nonsense"}}, "Invalid type: nonsense"),
        ({"json": {"$ref": "#"}}, "must have texts that end, got {'$ref': '#'}; what '#' requires holds it again"),
        (
            {
                "json": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}},
                    "required": ["n", "next"],
                }
            },
            "what '#' requires holds it again, without end",
        ),
        (
            {
                "json": {
                    "properties": {"a": {"$ref": "#/$defs/x"}},
                    "$defs": {
                        "x": {"anyOf": [{"$ref": "#/$defs/y"}]},
                        "y": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1},
                    },
                }
            },
            "what '#/$defs/",
        ),
        ({"json": {"items": {}, "uniqueItems": True}}, "cannot be held to these words of a schema: leave them out"),
        ({"json": {"a": {1}}}, "structured_outputs.json must be JSON"),
        ({"regex": "a[^\\x00-\\U0010ffff]"}, "no text fits it"),
        ({"json": {"type": "integer", "minimum": 10**300}}, "a limit of a number is too large: it may have 18 digits"),
        ({"json": {"properties": {"a": {"$id": "b", "$ref": "#/$defs/c"}}, "$defs": {"c": {}}}}, "leave $id out"),
        ({"grammar": "start: nothing"}, "structured_outputs.grammar must be something that can be compiled"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_itself(llm: LLM, form: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        llm.generate("a", SamplingParams(structured_outputs=StructuredOutputsParams(**form)), use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"$ref": "#"}], "minItems": 1},
        {"type": "object", "properties": {"next": {"enum": [1]}, "all": {"$ref": "#"}}, "required": ["next"]},
    ],
    ids=str,
)
def test_a_schema_that_holds_itself_and_may_end_is_taken(llm: LLM, schema: dict[str, Any]) -> None:
    assert llm.engine.input_processor.grammars.compile(StructuredOutputsParams(json=schema))


class Kinds(BaseModel):
    """Formats that pydantic writes, and that say nothing which a text could be held to."""

    where: Path
    secret: SecretStr
    data: bytes
    net: IPv4Network
    when: date


def test_an_unknown_format_is_an_annotation(llm: LLM, client: OpenAI) -> None:
    schema = Kinds.model_json_schema()
    for field in ("where", "secret", "data", "net"):
        schema["properties"][field]["maxLength"] = 8
    form = StructuredOutputsParams(json=schema)
    for text in texts(llm, n=5, seed=0, structured_outputs=form):
        jsonschema.validate(json.loads(text), schema)
        assert date.fromisoformat(json.loads(text)["when"])
    assert llm.engine.input_processor.grammars.compile(after_thoughts(form, "yes", ()))
    tool: Any = {"name": "put", "parameters": schema, "strict": True}
    answer = client.chat.completions.create(
        model="embedded", messages=QUESTION, max_tokens=300, tools=[{"type": "function", "function": tool}],
        tool_choice="required", parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    jsonschema.validate(json.loads(call.function.arguments), schema)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "grammar", ['?start: word | "(" start ")"\n?word: "a" | "b"', '!start : ("a"|"b")\n// ::= none']
)
def test_lark_s_marks_before_a_rule_s_name_are_lark(llm: LLM, grammar: str) -> None:
    form = StructuredOutputsParams(grammar=grammar)
    for text in texts(llm, n=8, seed=1, structured_outputs=form):
        assert re.fullmatch(r"\(*[ab]\)*", text)
    assert llm.engine.input_processor.grammars.compile(after_thoughts(form, "yes", ()))


@pytest.mark.parametrize("rule", ['"a" b\nb: "c" b', '"a" X\nX: /c/ & /d/'])
def test_a_dead_end_that_shows_late_is_named(client: OpenAI, rule: str) -> None:
    ask: dict[str, Any] = {"model": "embedded", "prompt": "a", "max_tokens": 20}
    with pytest.raises(BadRequestError, match="must lead to a text that ends, and did not after 1 tokens: "):
        client.completions.create(**ask, extra_body={"structured_outputs": {"grammar": f"start: {rule}"}})


def test_a_form_is_compiled_once(llm: LLM) -> None:
    inputs: Any = llm.engine.input_processor
    form = StructuredOutputsParams(choice=["one", "two"])
    first, second = inputs.grammars.compile(form), inputs.grammars.compile(form)
    assert isinstance(first, Grammar)
    assert first is not second
    assert first._start is second._start


def test_beams_are_refused(llm: LLM) -> None:
    params = SamplingParams(
        use_beam_search=True, best_of=2, temperature=0, structured_outputs=StructuredOutputsParams(choice=["a"])
    )
    with pytest.raises(ValueError, match="use_beam_search"):
        llm.generate("a", params, use_tqdm=False)


def test_over_http_by_either_field(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "embedded", "messages": QUESTION, "max_tokens": 300, "n": 5, "seed": 1}
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    for choice in client.chat.completions.create(**ask, response_format=form).choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    answer = client.chat.completions.create(**ask, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert {choice.message.content for choice in answer.choices} <= {"yes", "no"}
    streamed = client.chat.completions.create(**{**ask, "n": 1}, response_format=form, stream=True)
    jsonschema.validate(json.loads("".join(chunk.choices[0].delta.content for chunk in streamed)), SCHEMA)


def test_any_json_object(client: OpenAI) -> None:
    """Nothing bounds its length: a text that ended is an object, and one that did not begins like one."""
    answer = client.chat.completions.create(
        model="embedded", messages=QUESTION, max_tokens=60, n=10, seed=2, response_format={"type": "json_object"}
    )
    for choice in answer.choices:
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_a_form_that_takes_long_to_compile_holds_up_no_other(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = llm.engine.input_processor.grammars
    real, entered, go_on = grammars._compiled, threading.Event(), threading.Event()

    def compiled(kind: str, text: str) -> Any:
        if text == "slow":
            entered.set()
            assert go_on.wait(120)
        return real(kind, text)

    monkeypatch.setattr(grammars, "_compiled", compiled)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(grammars.compile, StructuredOutputsParams(regex="slow"))
        assert entered.wait(120)
        try:
            threads.submit(grammars.compile, StructuredOutputsParams(regex="quick")).result(60)
        finally:
            go_on.set()
        assert isinstance(slow.result(), Grammar)


def test_the_first_mask_is_made_as_a_form_is_compiled(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = llm.engine.input_processor.grammars
    masks: list[np.ndarray] = []
    real = grammars.mask
    monkeypatch.setattr(grammars, "mask", lambda matcher: masks.append(real(matcher)) or masks[-1])
    form = grammars.compile(StructuredOutputsParams(regex="(a{1000}){1000}"))
    assert len(masks) == 1
    allowed = form.allowed([], [], grammars.vocab_size)
    assert len(masks) == 2
    assert np.array_equal(*masks)
    texts = {llm.get_tokenizer().decode([int(token_id)]) for token_id in np.flatnonzero(allowed)}
    assert "a" in texts
    assert all(set(text) == {"a"} for text in texts)


def test_a_mask_that_takes_long_holds_up_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second mask of the form is made only after another request has come to its end, and a third has begun."""
    llm = LLM(dtype="float32", max_num_seqs=8, num_kv_blocks=256)
    engine = llm.engine
    real, go_on, made = engine.input_processor.grammars.mask, threading.Event(), []

    def mask(matcher: Any) -> np.ndarray:
        made.append(matcher)
        if len(made) > 6:  # one as the form is compiled, and the first of five sequences
            assert go_on.wait(600)
        return real(matcher)

    monkeypatch.setattr(engine.input_processor.grammars, "mask", mask)
    form = StructuredOutputsParams(regex="[a-z]{9}")
    engine.add_request("form", "a", SamplingParams(n=5, seed=0, max_tokens=40, structured_outputs=form))
    engine.add_request("other", "a", SamplingParams(max_tokens=60, ignore_eos=True))
    found = {output.request_id: output for _ in range(3) for output in engine.step()}
    engine.add_request("late", "b", SamplingParams(max_tokens=5, ignore_eos=True))
    while engine.holds({"late"}) or engine.holds({"other"}):
        found |= {output.request_id: output for output in engine.step()}
    assert {len(found[name].outputs[0].token_ids) for name in ("other", "late")} == {60, 5}
    assert [len(choice.token_ids) for choice in found["form"].outputs] == [1] * 5
    go_on.set()
    while engine.holds({"form"}):
        found |= {output.request_id: output for output in engine.step()}
    for choice in found["form"].outputs:
        assert re.fullmatch("[a-z]{9}", choice.text)


def test_a_schema_that_says_nothing_of_other_properties_has_none_but_by_option(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammars, tokenizer = llm.engine.input_processor.grammars, llm.get_tokenizer()
    says_so = {**schema, "additionalProperties": True}
    for given, option, may in ((schema, True, False), (schema, False, True), (says_so, True, True)):
        form = StructuredOutputsParams(json=given, disable_additional_properties=option)
        for whole, before in ((form, ""), (after_thoughts(form, "maybe", ()), "<think>x</think>")):
            matcher = grammars.compile(whole)._start.deep_copy()
            tokens = tokenizer(before + '{"a": 1, "b": 2}', add_special_tokens=False)["input_ids"]
            assert (matcher.try_consume_tokens(tokens) == len(tokens)) is may
