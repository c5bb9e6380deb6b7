"""Thoughts apart from answers: whole and streamed they are the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.reasoning import ReasoningParser, Thinks, parser_of_template, whether_it_thinks

FRAGMENTS = ["<think>", "</think>", "<", "</", "think>", "a", " ", "\n", "<tool_call>", "{}"]


def read(thinks: Thinks, pieces: list[str]) -> tuple[str, str]:
    parser, thoughts, content = ReasoningParser(thinks), "", ""
    for place, piece in enumerate([*pieces, ""]):
        more, text = parser.read(piece, is_final=place == len(pieces))
        thoughts, content = thoughts + more, content + text
    return thoughts, content


@pytest.mark.parametrize(
    ("thinks", "text", "expected"),
    [
        ("maybe", "<think>\na < b\n</think>\n\nYes.", ("\na < b\n", "\n\nYes.")),
        ("maybe", "\n<think>a</think></think>", ("a", "</think>")),
        ("maybe", "Yes.</think>", ("", "Yes.</think>")),
        ("maybe", "<thin", ("", "<thin")),
        ("maybe", "<think>a</thi", ("a</thi", "")),
        ("yes", "a</think>b<think>c</think>", ("a", "b<think>c</think>")),
        ("yes", "<think>a</think>b", ("a", "b")),
        ("yes", "never an end", ("never an end", "")),
        ("no", "<think>a</think>b", ("", "<think>a</think>b")),
    ],
)
def test_thoughts_end_at_their_marker(thinks: Thinks, text: str, expected: tuple[str, str]) -> None:
    assert read(thinks, [text]) == expected


@pytest.mark.parametrize("thinks", ["no", "maybe", "yes"])
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), st.lists(st.integers(0, 60), max_size=5))
def test_however_a_text_is_cut_its_thoughts_are_the_same(thinks: Thinks, text: str, cuts: list[int]) -> None:
    ends = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    parser = ReasoningParser(thinks)
    assert read(thinks, pieces) == read(thinks, list(text)) == parser.read(text, is_final=True)


def test_the_prompt_tells_whether_thoughts_come() -> None:
    for name in ("qwen3", "deepseek_r1"):
        assert whether_it_thinks(name, "<|im_start|>assistant\n<think>\n") == "yes"
        assert whether_it_thinks(name, "<|im_start|>assistant\n<think>\n\n</think>\n\n") == "no"
        assert whether_it_thinks(name, "a", continued="<think>half") == "yes"
        assert whether_it_thinks(name, "a", continued="<think>whole</think>The") == "no"
    assert whether_it_thinks("qwen3", "A user wrote <think> here.\n<|im_start|>assistant\n") == "maybe"
    assert whether_it_thinks("deepseek_r1", "<｜Assistant｜>") == "yes"


def test_a_chat_template_tells_how_its_model_thinks() -> None:
    assert parser_of_template("{%- set content = message.content.split('</think>')[-1] %}<|im_start|>") == "qwen3"
    assert parser_of_template("{{'<｜Assistant｜>' + content.split('</think>')[-1]}}") == "deepseek_r1"
    assert parser_of_template("<|im_start|>{{ messages[0].content }}") is None
    with pytest.raises(ValueError, match=r"^reasoning_parser must be one of .*got 'qwen'; did you mean 'qwen3'"):
        ServerOptions(reasoning_parser="qwen")
