"""How much the parts of a body may hold, and how long a text may be."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.body import WholeBody
from folovllm.serving.openai.errors import first_problem
from folovllm.serving.openai.longest_token import characters_a_token
from folovllm.serving.openai.protocol import ChatRequest, CompletionRequest
from folovllm.serving.openai.responses_protocol import ResponsesRequest
from tests.serve.support import Running

USER = {"role": "user", "content": ""}
CALL = {"function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize(
    ("kind", "path", "most", "entry"),
    [
        (CompletionRequest, "prompt", 256, "a"),
        (CompletionRequest, "prompt", 256, [5]),
        (ChatRequest, "messages[0].tool_calls", 128, CALL),
        (ChatRequest, "tools", 128, {"type": "function", "function": {"name": "f"}}),
        (ResponsesRequest, "input", 4096, USER),
        (ResponsesRequest, "input[0].content", 1024, {"type": "input_text", "text": ""}),
        (ResponsesRequest, "tools", 128, {"type": "function", "name": "f"}),
        (CompletionRequest, "stop[0]", 1024, None),
    ],
)
def test_what_is_at_the_limit_passes_and_one_more_does_not(
    kind: type[WholeBody], path: str, most: int, entry: Any
) -> None:
    def body(size: int) -> dict[str, Any]:
        value: Any = "x" * size if entry is None else [entry] * size
        rest = USER if kind in (ChatRequest, ResponsesRequest) else {}
        for name in reversed(re.findall(r"\w+", path)[1:]):
            value = [value] if name == "0" else {**rest, name: value}
        needed = {CompletionRequest: {"prompt": "a"}, ChatRequest: {"messages": []}, ResponsesRequest: {"input": "a"}}
        return {**needed.get(kind, {}), path.partition("[")[0].partition(".")[0]: value}

    kind.model_validate(body(most))
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body(most + 1))
    error = first_problem(caught.value.errors())
    unit = "characters" if entry is None else "entries"
    assert error.message == f"{path} must have at most {most} {unit}, got {most + 1}: send less"
    assert error.param == path


@pytest.mark.parametrize("path", ["structured_outputs.json", "response_format.json_schema.schema"])
def test_a_form_given_as_json_is_counted_without_its_punctuation(path: str) -> None:
    def body(size: int) -> dict[str, Any]:
        form: Any = {"enum": ["x" * (size - 6)]}  # an object, a name of four, a list
        if path.startswith("structured"):
            return {"prompt": "a", "structured_outputs": {"json": form}}
        return {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": form}}}

    CompletionRequest.model_validate(body(2**16))
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(body(2**16 + 1))
    error = first_problem(caught.value.errors())
    assert (error.param, error.message) == (
        path,
        f"{path} must have at most 65536 characters of JSON, got more: send less",
    )


def test_one_prompt_of_token_ids_is_not_a_list_of_prompts() -> None:
    assert CompletionRequest(prompt=[5] * 10_000).num_prompts == 1


def fast(model: Any = None, **parts: Any) -> PreTrainedTokenizerFast:
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(
        model or models.BPE({**{letter: place for place, letter in enumerate(letters)}, "abcde": 256}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_the_longest_token_bounds_a_text() -> None:
    assert characters_a_token(fast()) == 5
    composed = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("x")])
    assert characters_a_token(fast(normalizer=composed)) == 20


def test_there_is_no_bound_where_text_may_be_left_out() -> None:
    split = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel()])
    assert characters_a_token(fast(pre_tokenizer=split)) is None
    assert characters_a_token(fast(normalizer=normalizers.Strip())) is None
    assert characters_a_token(fast(normalizer=normalizers.Replace("aa", "a"))) is None
    assert characters_a_token(fast(pre_tokenizer=pre_tokenizers.Metaspace())) is None  # what is unknown may vanish
    stripping = fast()
    stripping.add_tokens([AddedToken("<end>", rstrip=True)])
    assert characters_a_token(stripping) is None
    assert characters_a_token(None) is None


def test_a_prompt_of_the_longest_tokens_is_let_through(server: Running) -> None:
    """As many of them as fit; one character more is refused before it is tokenised."""
    serving = server.app.state.serving
    vocabulary = serving.tokenizer.get_vocab()
    longest = max((token for token in vocabulary if token.isascii() and token.isalpha()), key=len)
    limit = server.llm.engine.max_model_len - 1
    text = longest * limit
    assert len(serving.tokens_of(text, at_once, add_special_tokens=False)) >= limit
    assert len(text) <= serving.max_characters
    with pytest.raises(ValueError, match="prompt must have at most"):
        serving.tokens_of("x" * (serving.max_characters + 1), at_once, add_special_tokens=False)
