"""Fields of vLLM's requests and answers, fields that nobody knows, and what /docs says of those that there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from pydantic import ValidationError

from folovllm import LLM, SamplingParams
from folovllm.serving.openai.body import Body
from folovllm.serving.openai.errors import first_problem
from folovllm.serving.openai.messages_protocol import CountTokensRequest, MessagesRequest
from folovllm.serving.openai.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from folovllm.serving.openai.responses_protocol import ResponsesRequest
from tests.serve.support import Running, running

ASK = {"messages": [{"role": "user", "content": "What is paging?"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def lenient() -> Iterator[Running]:
    with running(engine={"num_kv_blocks": 64}, unknown_fields="warn") as made:
        yield made


def test_a_field_that_nobody_knows_is_said_once_and_left_out(
    lenient: Running, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("folovllm").addHandler(caplog.handler)
    for _ in range(2):
        assert httpx.post(f"{lenient.url}/v1/chat/completions", json={**ASK, "of_another": 1}).status_code == 200
    logging.getLogger("folovllm").removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if "of_another" in record.getMessage()] == [
        "a request has the field 'of_another', which is not known here and left out"
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 0}, "temprature is not a field of this request; did you mean 'temperature'?"),
        ({"guided_json": {}}, "guided_json must be null: send json in structured_outputs, got {}"),
        ({"guided_decoding": {"regex": "a"}}, "guided_decoding must be null: send json, regex, choice or grammar in "),
        ({"prompt": "a"}, "prompt is not a field of this request, or not supported: leave it out"),
        ({"messages": [{"role": "user", "contnet": "a"}]},
         "messages[0].contnet is not a field of this request; did you mean 'content'?"),
        ({"tool_choice": {"typ": "function", "function": {"name": "f"}}},
         "tool_choice.typ is not a field of this request; did you mean 'type'?"),
        ({"messages": [{"role": "user", "content": "a", "audio": {"id": "a"}}]}, "messages[0].audio must be null"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag must be null"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs key 'a' must name a registered logits processor"),
        ({"temperature": "1"}, "temperature must be a number"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_still_refused(lenient: Running, fields: dict[str, Any], message: str) -> None:
    refused = httpx.post(f"{lenient.url}/v1/chat/completions", json={**ASK, **fields})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(message)


PART = {"type": "text", "text": "a"}
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1}}}
MESSAGES = [{"role": "user", "content": [PART]}, {"role": "assistant", "tool_calls": CALLS}]
BODIES: list[tuple[str, type[Body], dict[str, Any]]] = [
    ("/v1/completions", CompletionRequest, {"prompt": "a", "stream": True, "stream_options": {"include_usage": True},
                                            "structured_outputs": {"choice": ["a"]}, "max_tokens": 1}),
    ("/v1/completions", CompletionRequest, {"prompt": "a", "response_format": FORM, "max_tokens": 1}),
    ("/v1/chat/completions", ChatRequest, {
        "messages": MESSAGES, "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("/tokenize", TokenizeRequest, {"messages": MESSAGES}),
    ("/detokenize", DetokenizeRequest, {"tokens": [5]}),
    ("/v1/responses", ResponsesRequest, {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "id": "r"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "text"}}, "stream": True, "stream_options": {}, "reasoning": {"effort": "low"},
        "max_output_tokens": 1}),
    ("/v1/responses", ResponsesRequest, {"input": "a", "max_output_tokens": 1, "text": {
        "format": {"type": "json_schema", "name": "a", "schema": {"const": 1}}}}),
    ("/v1/messages", MessagesRequest, {
        "messages": [
            {"role": "user", "content": [PART]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [PART]}]},
        ],
        "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}, "max_tokens": 1}),
    ("/v1/messages/count_tokens", CountTokensRequest, {
        "messages": [{"role": "user", "content": "a"}], "system": [PART],
        "output_config": {"format": {"type": "json_schema", "schema": {"const": 1}}}}),
]  # fmt: skip
FREE = ("schema", "parameters", "input_schema", "logit_bias", "metadata", "chat_template_kwargs")
"""Objects whose names are not ours."""


def with_field(body: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(where, the body with the field there), for each object in it."""
    if isinstance(body, dict):
        yield name, {**body, name: value}
    parts = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for place, part in parts:
        if place in FREE:
            continue
        for where, changed in with_field(part, name, value):
            dot = "" if where.startswith("[") else "."
            at = f"[{place}]" if isinstance(body, list) else str(place)
            copy = dict(body) if isinstance(body, dict) else list(body)
            copy[place] = changed
            yield f"{at}{dot}{where}", copy


OTHERS = {
    "provider_specific_fields": {"a": 1}, "cache_control": {"type": "ephemeral"}, "parsed": {"a": 1},
    "annotations": [1], "include_obfuscation": False,
}  # fmt: skip
UNKNOWN = {"reasoning_details": [{"text": "a"}], "verbosity": "low", "of_another": 1, "?": None}


@pytest.mark.parametrize(("path", "kind", "body"), BODIES)
def test_an_unknown_field_is_left_out_at_every_depth(path: str, kind: type[Body], body: dict[str, Any]) -> None:
    """And refused by its full name where unknown fields are, unless it is null or known to change nothing."""
    plain = kind.model_validate(body)
    for name, value in {**OTHERS, **UNKNOWN}.items():
        seen: list[str] = []
        for where, changed in with_field(body, name, value):
            assert kind.model_validate(changed, context=seen.append) == plain
            if name in OTHERS or value is None:
                assert kind.model_validate(changed) == plain
                continue
            with pytest.raises(ValidationError) as caught:
                kind.model_validate(changed)
            assert first_problem(caught.value.errors()).message.startswith(f"{where} is not a field")
        assert set(seen) == {name} - OTHERS.keys() - {"?"}


@given(st.text(max_size=70), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
@settings(deadline=None, max_examples=60)
def test_no_name_of_a_field_breaks_the_check(name: str, value: Any) -> None:
    for _, kind, body in BODIES:
        for where, changed in with_field(body, name, value):
            try:
                kind.model_validate(changed, context=lambda _: None)
            except ValidationError as error:
                problem = first_problem(error.errors())
                assert problem.message.split(" ")[0]
                assert "should" not in problem.message.replace(name, "").replace(where, "")


def test_what_another_request_asks_for_is_not_left_out(lenient: Running) -> None:
    for path, name, value in (("completions", "max_completion_tokens", 3), ("responses", "stop", ["a"])):
        body = {"prompt": "a"} if path == "completions" else {"input": "a"}
        answer = httpx.post(f"{lenient.url}/v1/{path}", json={**body, name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_parts_of_an_answer_that_there_are_not_may_be_asked_for(lenient: Running) -> None:
    ask = {"input": "a", "max_output_tokens": 1}
    for include in ([], ["reasoning.encrypted_content"]):
        assert httpx.post(f"{lenient.url}/v1/responses", json={**ask, "include": include}).status_code == 200
    answer = httpx.post(f"{lenient.url}/v1/responses", json={**ask, "include": ["message.output_text.logprobs"]})
    assert answer.json()["error"]["message"].startswith("include[0] must be 'reasoning.encrypted_content', ")


def test_beams_are_those_of_the_engine(client: OpenAI) -> None:
    beams = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5}
    ask: dict[str, Any] = {"prompt": "Once upon", "n": 2, "temperature": 0, "max_tokens": 8}
    answer = client.completions.create(model="embedded", **ask, extra_body=beams)
    params = SamplingParams(n=2, temperature=0, max_tokens=8, **beams)
    (output,) = LLM(dtype="float32").generate(ask["prompt"], params, use_tqdm=False)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in output.outputs]


def test_answers_have_the_keys_of_vllms(server: Running) -> None:
    chat = httpx.post(f"{server.url}/v1/chat/completions", json={**ASK, "request_id": "mine"}).json()
    assert chat["id"] == "chatcmpl-mine"
    nothing = {"service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"}
    assert {name for name in nothing if chat[name] is None} == nothing
    assert chat["choices"][0]["token_ids"] is chat["choices"][0]["message"]["annotations"] is None
    text = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}).json()
    assert text["system_fingerprint"] is text["choices"][0]["prompt_logprobs"] is None


def test_docs_say_what_sampling_is_and_have_examples_that_work(server: Running) -> None:
    spec = httpx.get(f"{server.url}/openapi.json").json()
    for kind in ("ChatRequest", "CompletionRequest", "ResponsesRequest"):
        fields = spec["components"]["schemas"][kind]["properties"]
        assert fields["temperature"]["description"] == "0 is greedy, higher is more varied"
    groups = {path: next(iter(each.values()))["tags"] for path, each in spec["paths"].items()}
    assert groups["/v1/chat/completions"] == ["answers"]
    assert groups["/tokenize"] == ["tokens"]
    assert groups["/v1/models"] == groups["/health"] == ["the server"]
    for path, name in (("/v1/chat/completions", "ChatRequest"), ("/v1/responses", "ResponsesRequest")):
        (example,) = spec["components"]["schemas"][name]["examples"]
        assert httpx.post(server.url + path, json=example).status_code == 200
