"""Calls in what models wrote: whole, and cut at every character, they are the same."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.tool_parsers import abstract_tool_parser, formats, json_call
from folovllm.serving.tool_parsers.abstract_tool_parser import ToolParser
from folovllm.serving.tool_parsers.formats import (
    NAMES,
    ArgumentsParser,
    CallListParser,
    HermesToolParser,
    Llama3JsonToolParser,
    MistralToolParser,
    Qwen3XMLToolParser,
    get_tool_parser,
    parser_of_template,
)

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "where": {"type": "object"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
PARIS, BEIJING = '{"city": "Paris", "days": 2}', '{"city": "北京"}'
ODD = r'{"city": "a \"b\" \\", "where": {"x": [1, {"y": "}]"}]}}'

# (parser, what a model wrote, content, calls)
RECORDED: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # Qwen3-8B and Hermes-3
    ("hermes", "The capital is Paris.", "The capital is Paris.", []),
    ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>', "",
     [("get_weather", PARIS)]),
    ("hermes", '<think>\nTwo places.\n</think>\n\nI look it up.\n<tool_call>\n{"name": "get_weather", "arguments": '
     f'{PARIS}}}\n</tool_call>\n<tool_call>\n{{"name": "get_weather", "arguments": {BEIJING}}}\n</tool_call>\n',
     "<think>\nTwo places.\n</think>\n\nI look it up.", [("get_weather", PARIS), ("get_weather", BEIJING)]),
    ("hermes", f'<tool_call>{{"arguments": {ODD}, "name": "get_weather"}}</tool_call> Done.', "Done.",
     [("get_weather", ODD)]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": null}</tool_call>', "",
     [("now", "{}"), ("now", "{}")]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "",
     [("get_weather", '{"city": "Paris"}')]),
    ("hermes", 'Use <tool_call> as a tag, {"name": 1} and <tool_', 'Use <tool_call> as a tag, {"name": 1} and <tool_',
     []),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par', "",
     [("get_weather", '{"city": "Par')]),
    ("hermes", '<tool_call>\n{"name": "get_wea', '<tool_call>\n{"name": "get_wea', []),
    ("hermes", " two  words \n\n", " two  words \n\n", []),
    # Qwen3-Coder-30B
    ("qwen3_xml", "I check.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
     "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>", "I check.", [("get_weather", PARIS)]),
    ("qwen3_xml", "<function=get_weather>\n<parameter=city>\n12\n\n</parameter>\n<parameter=exact>\nTrue\n"
     "</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=where>\n{\"x\": 1}\n</parameter>\n"
     "<parameter=days>\nmany\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>\nDone.",
     "Done.", [("get_weather", '{"city": "12\\n", "exact": true, "note": null, "where": {"x": 1}, "days": "many", '
                '"other": "7"}')]),
    ("qwen3_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
     "</tool_call>", "", [("now", "{}"), ("now", "{}")]),
    ("qwen3_xml", "<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n<parameter=city>\nPa", "",
     [("get_weather", '{"days": 2')]),
    ("qwen3_xml", "<tool_call> is a tag, <function=now is none", "<tool_call> is a tag, <function=now is none", []),
    # Mistral-7B-Instruct-v0.3 (a list) and Mistral-Small-3.2 (names, with and without an id)
    ("mistral", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
     "", [("get_weather", PARIS), ("now", "{}")]),
    ("mistral", f"Well.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{{}}", "Well.",
     [("get_weather", PARIS), ("now", "{}")]),
    ("mistral", f"[TOOL_CALLS]get_weather{ODD}", "", [("get_weather", ODD)]),
    ("mistral", "[TOOL_CALLS] are none", "[TOOL_CALLS] are none", []),
    ("mistral", "An array [1, 2] and [TOOL", "An array [1, 2] and [TOOL", []),
    # Llama-3.1-8B-Instruct and Llama-3.2-3B-Instruct
    ("llama3_json", f'{{"name": "get_weather", "parameters": {PARIS}}}', "", [("get_weather", PARIS)]),
    ("llama3_json", f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "now", '
     '"parameters": {}}', "", [("get_weather", PARIS), ("now", "{}")]),
    ("llama3_json", f'{{"type": "function", "name": "get_weather", "parameters": {ODD}}}', "", [("get_weather", ODD)]),
    ("llama3_json", 'Here: <|python_tag|>{"name": "now", "parameters": {}}', "Here:", [("now", "{}")]),
    ("llama3_json", '{"name": "Ada", "born": 1815} is she.', '{"name": "Ada", "born": 1815} is she.', []),
    ("llama3_json", '{"answer": [1, {"a": "b"}]}', '{"answer": [1, {"a": "b"}]}', []),
    ("llama3_json", 'Call {"name": "now", "parameters": {}}', 'Call {"name": "now", "parameters": {}}', []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), RECORDED)
def test_cut_anywhere_a_text_has_the_same_calls(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    make = get_tool_parser(name)
    assert make(TOOLS).extract_tool_calls(text) == (content, calls)
    for pieces in [[text[:at], text[at:]] for at in range(len(text) + 1)] + [list(text)]:
        assert read(make(TOOLS), pieces)[:2] == (content, calls), pieces


def test_arguments_are_handed_on_as_they_come() -> None:
    parser = HermesToolParser(TOOLS)
    parser.extract_tool_calls_streaming('<tool_call>{"name": "get_weather", "arguments": {"city": "')
    for char in "Paris":
        (piece,) = parser.extract_tool_calls_streaming(char)
        assert not isinstance(piece, str)
        assert (piece.index, piece.arguments, piece.name) == (0, char, None)


def test_content_waits_only_where_a_marker_may_begin() -> None:
    parser = HermesToolParser(TOOLS)
    assert parser.extract_tool_calls_streaming("I <look ") == ["I <look"]
    assert parser.extract_tool_calls_streaming("<tool_") == []
    assert parser.extract_tool_calls_streaming("box>") == [" <tool_box>"]


def test_what_is_forced_needs_no_marker() -> None:
    text = '[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "["}}]'
    assert CallListParser(TOOLS).extract_tool_calls(text) == (
        "", [("now", "{}"), ("get_weather", '{"city": "["}')]
    )  # fmt: skip
    assert ArgumentsParser({"now": {}}).extract_tool_calls('{"a": 1') == ("", [("now", '{"a": 1')])


def test_ids_have_the_form_that_the_model_s_template_takes() -> None:
    assert HermesToolParser.make_id().startswith("call_")
    assert len({HermesToolParser.make_id() for _ in range(9)}) == 9
    assert len(MistralToolParser.make_id()) == 9
    assert MistralToolParser.make_id().isalnum()


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{% if tools %}<tools>…</tools> within <tool_call></tool_call> XML tags", HermesToolParser),
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", Qwen3XMLToolParser),
        ('{{- "[TOOL_CALLS] [" }}', MistralToolParser),
        ('in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
         Llama3JsonToolParser),
        ("{{ messages[0].content }}", None),
    ],
)  # fmt: skip
def test_a_chat_template_gives_the_format_away(template: str, parser: Any) -> None:
    assert parser_of_template(template) is parser


def test_parsers_have_names() -> None:
    assert {get_tool_parser(name).__name__ for name in NAMES} == {
        "HermesToolParser", "Qwen3XMLToolParser", "MistralToolParser", "Llama3JsonToolParser",
    }  # fmt: skip
    for name in NAMES:
        ServerOptions(tool_call_parser=name)
    with pytest.raises(ValueError, match=r"^tool_call_parser must be one of .*got 'hermez'; did you mean 'hermes'"):
        ServerOptions(tool_call_parser="hermez")


def test_nesting_without_end_ends_no_parser() -> None:
    deep = "[" * 200_000
    text = f'<tool_call>{{"name": {deep}}}</tool_call>'
    assert HermesToolParser(TOOLS).extract_tool_calls(text) == (text, [])
    xml = f"<function=get_weather><parameter=where>{deep}</parameter></function>"
    ((name, arguments),) = Qwen3XMLToolParser(TOOLS).extract_tool_calls(xml)[1]
    assert (name, json.loads(arguments)) == ("get_weather", {"where": deep})


# What texts are made of: markers, pieces of them, and what stands between.
FRAGMENTS = [
    "[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|python_tag|>", "<function=", "now>", "get_weather>",
    "</function>", "<parameter=days>", "<parameter=", "</parameter>", "\n2\n", "<", "</", "[", "]", "{", "}", '"',
    ":", ",", ";", "x", " ", "\n", "\r", "5", '{"name": ', '"now"', '"none"', '"arguments": ', '"parameters": ', "{}",
    "[ARGS]", "now",
    '{"name": "now", "arguments": {"a": "}"}}', '[{"name": "now", "parameters": {}}', '\n{"name": "now"', "\\",
]  # fmt: skip
SLIPS = [
    "NaN", "Infinity", "-", "1e999", "True", "'", "\\u00", "\\x", "\\ud800", '{"a": ', "[1, ", ', "b": ', '"a"', "null",
]  # fmt: skip
PARSERS = [*dict.fromkeys(get_tool_parser(name) for name in NAMES), CallListParser, ArgumentsParser]


def read(parser: ToolParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]], bool]:
    """(content, calls, whether the last is open) of what came piece by piece; an empty one ends it."""
    content, calls = "", list[list[str]]()
    for place, piece in enumerate([*pieces, ""]):
        for each in parser.extract_tool_calls_streaming(piece, is_final=place == len(pieces)):
            if isinstance(each, str):
                content += each
            elif each.name is not None:
                assert (each.index, each.arguments) == (len(calls), "")
                calls.append([each.name, ""])
            else:
                calls[each.index][1] += each.arguments
    return content, [(name, arguments) for name, arguments in calls], parser.is_in_call


@pytest.mark.parametrize("make", PARSERS)
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join), st.lists(st.integers(0, 99), max_size=6))
def test_however_a_text_is_cut_it_is_read_as_whole(make: type[ToolParser], text: str, cuts: list[int]) -> None:
    """Two cuts at one place make an empty piece."""
    tools = {"now": {}} if make is ArgumentsParser else TOOLS
    ends = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    whole = read(make(tools), [text])
    assert read(make(tools), pieces) == whole
    assert read(make(tools), list(text)) == whole
    assert make(tools).extract_tool_calls(text) == whole[:2]


class Counted(str):
    """Counts the characters that its methods, and those of its parts, look at or copy."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Counted:
        return counted(super().__getitem__(place))

    def __add__(self, other: str) -> Counted:
        return counted(super().__add__(other))

    def __radd__(self, other: str) -> Counted:
        return counted(str(other) + str(self))

    def __contains__(self, part: Any) -> bool:
        return self.find(part) >= 0

    def find(self, part: str, begin: Any = 0, end: Any = None) -> int:
        found = super().find(part, begin, end)
        Counted.looked_at += len(self) - begin if found < 0 else found - begin
        return found

    def partition(self, part: str) -> Any:
        return tuple(counted(each) for each in super().partition(part))

    def lstrip(self, chars: str | None = None) -> Counted:
        return counted(super().lstrip(chars))

    def rstrip(self, chars: str | None = None) -> Counted:
        return counted(super().rstrip(chars))


def counted(text: str) -> Counted:
    Counted.looked_at += len(text)
    return Counted(text)


class CountedPattern:
    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def __getattr__(self, name: str) -> Any:
        def find(text: str, begin: int = 0) -> Any:
            found = getattr(self.pattern, name)(text, begin)
            Counted.looked_at += found.end() - begin if found else len(text) - begin if name == "search" else 1
            return found

        return find


@pytest.fixture(scope="module")
def counted_patterns() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (abstract_tool_parser, formats, json_call):
            for name, value in list(vars(module).items()):
                if isinstance(value, re.Pattern):
                    patch.setattr(module, name, CountedPattern(value))
        any_of = abstract_tool_parser.any_of
        patch.setattr(abstract_tool_parser, "any_of", lambda *markers: CountedPattern(any_of(*markers)))
        yield


def work(make: type[ToolParser], text: str, size: int) -> int:
    """Characters looked at, and functions called, for a text in pieces of a size."""
    parser = make({"now": {}} if make is ArgumentsParser else TOOLS)
    return work_of(text, size, lambda piece, is_final: parser.extract_tool_calls_streaming(piece, is_final=is_final))


def work_of(text: str, size: int, take: Callable[[str, bool], object]) -> int:
    pieces = [Counted(text[at : at + size]) for at in range(0, len(text), size)]
    calls, Counted.looked_at = 0, 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for place, piece in enumerate(pieces, 1):
            take(piece, place == len(pieces))
    finally:
        sys.setprofile(before)
    return calls + Counted.looked_at


BEGINS: dict[type[ToolParser], list[str]] = {
    HermesToolParser: ["", '<tool_call>{"name": "', *(f'<tool_call>{{"name": "now", "arguments": {each}' for each in (
        '{"a": "', '{"a": 1', '"', "["))],
    Qwen3XMLToolParser: ["", "<tool_call>", "<function=", "<function=now>", "<function=now><parameter=days>"],
    MistralToolParser: ["", "[TOOL_CALLS]", '[TOOL_CALLS]now{"a": "', '[TOOL_CALLS][{"name": "now", "arguments": ['],
    Llama3JsonToolParser: ["", "<|python_tag|>", '{"name": "now", "parameters": {"a": "', '{"x": "'],
    CallListParser: ["", "[", '[{"name": "now", "parameters": {"a": 1', '[{"name": "now", "parameters": {"a": "'],
    ArgumentsParser: [""],
}  # fmt: skip
UNITS = [
    "x", " ", "\n", "<", '<tool_call>{"name": 5} ', "<tool_call> ", "<function=now></function>", "5", "[", '{"', "\\u",
    "<parameter=a>1</parameter>", '[TOOL_CALLS]now{"a": 1}', '{"name": "now", "parameters": {}};',
    '<tool_call>{"name": "now"}</tool_call>', "<|python_tag|>",
]  # fmt: skip


@pytest.mark.parametrize(("make", "begin"), [(make, begin) for make in PARSERS for begin in BEGINS[make]])
def test_the_work_grows_with_the_text_and_not_with_its_square(
    counted_patterns: None, make: type[ToolParser], begin: str
) -> None:
    for unit in UNITS:
        for size in (3, 10**9):
            small, large = (work(make, begin + unit * num, size) for num in (30, 60))
            assert large <= 2.1 * small + 100, (unit, size)


def strictly(text: str) -> Any:
    """What a parser that takes JSON, and nothing else, makes of it."""
    return json.loads(text.encode("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("make", [make for make in PARSERS if make is not ArgumentsParser])
@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.sampled_from(FRAGMENTS + SLIPS), max_size=9).map("".join))
def test_arguments_of_all_calls_but_one_that_is_cut_are_json(make: type[ToolParser], data: Any, text: str) -> None:
    parser = make(TOOLS)
    *whole, last = parser.extract_tool_calls(data.draw(st.sampled_from(BEGINS[make])) + text)[1] or [("", "{}")]
    for _, arguments in whole if parser.is_in_call else [*whole, last]:
        strictly(arguments)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"n": Infinity, "m": [-Infinity, NaN]}', '{"n": null, "m": [null, null]}'),
        ('{"a": True, "b": None, "c": 1e999}', '{"a": true, "b": null, "c": 1e999}'),
        ('{"a": "1\n2\t", "b": [1, 2, ], }', '{"a": "1\\n2\\t", "b": [1, 2 ] }'),
        (r'{"a": "it\'s \d+ \u00e4 \u12"}', r"""{"a": "it's \\d+ \u00e4 \\u12"}"""),
        ('{"a": 1, "b": 2 3}', '{"a": 1, "b": 2}'),
        ('{"a": [1, {"b": }], "c": 1}', '{"a": [1, {}]}'),
        ('{"a": .5}', "{}"),
        ('"{\\"a\\": NaN,}"', '{"a": null}'),
        ('"five"', '"five"'),
        ('""', "{}"),
        (r'"\ud800"', r'"\ud800"'),
        ("[" * 200 + "]" * 200, "[" * 127 + "]" * 127),
    ],
)
def test_slips_in_arguments_are_mended_and_what_is_no_json_is_closed(written: str, arguments: str) -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {written}}}</tool_call>'
    for pieces in ([text], list(text)):
        ((name, found),) = read(HermesToolParser(TOOLS), pieces)[1]
        assert (name, found) == ("now", arguments)
        strictly(found)
    assert HermesToolParser(TOOLS).extract_tool_calls(r'<tool_call>{"name": "\ud800"}')[1] == []


def test_a_parameter_that_comes_twice_is_in_the_arguments_once() -> None:
    text = "<function=now><parameter=a>1</parameter>\n<parameter=a>2</parameter><parameter=b>3</parameter></function>"
    assert read(Qwen3XMLToolParser(TOOLS), [text])[1] == [("now", '{"a": "1", "b": "3"}')]


def test_a_list_that_is_cut_leaves_no_fragment_and_says_that_its_call_is_open() -> None:
    assert read(CallListParser(TOOLS), ['[{"name": "no']) == ("", [], False)
    assert read(CallListParser(TOOLS), ['[{"name": "now", "parameters": {"a']) == ("", [("now", '{"a')], True)
    assert read(CallListParser(TOOLS), ['[{"name": "now", "parameters": {}}, {"na']) == ("", [("now", "{}")], False)


def test_arguments_that_are_no_object_are_handed_on_as_they_are() -> None:
    for text in ("[1, [2]]", "5", '"[1]"'):
        call = f'{{"name": "now", "arguments": {text}}}'
        expected = ("", [("now", text.strip('"'))], False)
        assert read(HermesToolParser(TOOLS), list(f"<tool_call>{call}</tool_call>")) == expected


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Days"}, "5", 5),
        ({"$ref": "#/$defs/Place"}, '{"x": 1}', {"x": 1}),
        ({"allOf": [{"$ref": "#/$defs/Days"}], "description": "d"}, "5", 5),
        ({"oneOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "array", "items": {}}, {"$ref": "#/$defs/Days"}]}, "[5]", [5]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
        ({"enum": [1, 5]}, "5", 5),
        ({"enum": [True, "a"]}, "True", True),
        ({"const": 5}, "5", 5),
        ({"properties": {"x": {}}}, "{}", {}),
        ({"type": "integer"}, "true", "true"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "object"}, '{"x": [-1e999]}', '{"x": [-1e999]}'),
        ({"type": "object"}, r'{"x": "\ud83d"}', r'{"x": "\ud83d"}'),
        ({"type": "object"}, r'{"x": "\ud83d\ude00"}', {"x": "😀"}),
        ({"$ref": "#/$defs/Self"}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/Self"}, {"$ref": "#/$defs/Days"}]}, "5", 5),
        ({"$ref": "#/$defs/Nothing"}, "5", "5"),
        (True, "5", "5"),
    ],
)
def test_a_parameter_has_the_type_of_its_schema(schema: Any, text: str, value: Any) -> None:
    defs = {"Days": {"type": "integer"}, "Place": {"$ref": "#/$defs/Deep~1er"}, "Deep/er": {"type": "object"},
            "Self": {"$ref": "#/$defs/Self"}, "Arguments": {"properties": {"a": schema}}}  # fmt: skip
    xml = f"<function=f><parameter=a>\n{text}\n</parameter></function>"
    for tool in ({"properties": {"a": schema}, "$defs": defs}, {"$ref": "#/$defs/Arguments", "$defs": defs}):
        ((_, arguments),) = Qwen3XMLToolParser({"f": tool}).extract_tool_calls(xml)[1]
        assert json.loads(arguments) == {"a": value}
    for odd in ({"properties": []}, {"properties": {"a": schema}, "allOf": 5}):
        assert Qwen3XMLToolParser({"f": odd}).extract_tool_calls(xml)[1]
