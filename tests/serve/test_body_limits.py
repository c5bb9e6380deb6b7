"""The table of limits: each of its rows, how they are set, and the notes' copy of it."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.limits import AS_JSON, CHARACTERS, FIELDS, BodyLimits, names
from folovllm.serving.openai.longest_token import characters_a_token
from tests.serve.support import Running

NOTES = Path(__file__).parents[2] / "docs"
ROWS = [(row.name, path) for row in fields(BodyLimits) for path in row.metadata["paths"]]
UNITS = {row.name: row.metadata["unit"] for row in fields(BodyLimits)}


def value_of(unit: str, size: int) -> Any:
    if unit == CHARACTERS:
        return "x" * size
    if unit == FIELDS:
        return {f"f{number}": 0 for number in range(size)}
    return [0] * (size - 1) if unit == AS_JSON else ["x"] * size  # a list counts as one, and so does each number in it


def put(path: list[str], value: Any) -> Any:
    """A body that has the value where the path leads."""
    if not path:
        return value
    inner = put(path[1:], value)
    return [inner] if path[0] == "[]" else {path[0]: inner}


@pytest.mark.parametrize(("name", "path"), ROWS)
def test_what_is_at_the_limit_passes_and_one_more_does_not(name: str, path: str) -> None:
    limits = replace(BodyLimits(), **{name: 7})
    parts = path.replace("[]", ".[]").split(".") if path else []
    limits.check(put(parts, value_of(UNITS[name], 7)))
    with pytest.raises(ValueError, match=re.escape(f"--limit {name}=N")) as caught:
        limits.check(put(parts, value_of(UNITS[name], 8)))
    field = path.replace("[]", "[0]") or "the body"
    assert str(caught.value).startswith(f"{field} must have at most 7 {UNITS[name]}, got 8")


def test_one_prompt_of_token_ids_is_not_a_list_of_prompts() -> None:
    BodyLimits(prompts=2).check({"prompt": [1, 2, 3]})
    with pytest.raises(ValueError, match="prompt must have"):
        BodyLimits(prompts=2).check({"prompt": [[1], [2], [3]]})


@pytest.mark.parametrize(
    "body", [None, 1, "x", [], {"messages": 1}, {"messages": [None, "x"]}, {"stop": None}, {"prompt": []}]
)
def test_values_of_other_types_are_left_to_others(body: Any) -> None:
    BodyLimits().check(body)


def test_a_ceiling_is_set_by_its_name() -> None:
    assert BodyLimits.parse(["stop=2", "body=10"]) == BodyLimits(stop=2, body=10)
    assert BodyLimits.parse([]) == BodyLimits()


@pytest.mark.parametrize(
    ("given", "said"),
    [("stops=2", "did you mean 'stop'"), ("stop", "a whole number"), ("stop=x", "a whole number"), ("=2", "NAME=N"),
     ("stop=0", "limit stop must be positive"), ("stop=-1", "a whole number")],
)  # fmt: skip
def test_a_wrong_ceiling_is_refused(given: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BodyLimits.parse([given])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_notes_have_the_table(language: str) -> None:
    text = (NOTES / language / "service.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) [^|]*\| (.*) \|$", text, re.MULTILINE)
    found = {name: (int(most.replace(",", "")), re.findall("`([^`]*)`", paths)) for name, most, paths in rows}
    table = {row.name: (row.default, [path for path in row.metadata["paths"] if path]) for row in fields(BodyLimits)}
    assert found == table
    assert list(found) == names()


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


def test_a_form_given_as_text_is_bounded_like_one_given_as_json() -> None:
    schema = {"enum": ["x" * 100]}
    for given in (schema, json.dumps(schema)):
        with pytest.raises(ValueError, match=r"structured_outputs\.json must have at most 50"):
            BodyLimits(schema_length=50).check({"structured_outputs": {"json": given}})
