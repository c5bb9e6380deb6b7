"""Every option of every command says what it is for, and the default that it has."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.entrypoints.cli.main import build_parser, main
from folovllm.entrypoints.cli.parser import said_of
from folovllm.sampling_params import SamplingParams

# Without these, nothing is done: no file is written or read, nothing is said beforehand.
NOTHING = {"--json", "--trace", "--system"}


def commands(parser: Any = None, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that can be typed, with the options that it gets when it is."""
    parser = parser or build_parser()
    kinds = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for kind in kinds:
        for word, each in kind.choices.items():
            yield from commands(each, f"{name} {word}".strip())
    if not kinds:
        with contextlib.suppress(SystemExit):
            parser.parse_known_args([])  # a benchmark gets its options here
        yield name, parser


PARSERS = dict(commands())


def options(command: str) -> Iterator[tuple[argparse.Action, str, str]]:
    """(option, what it is for, its default in words or ""), as the help prints them."""
    for action in PARSERS[command]._actions:
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            text = PARSERS[command]._get_formatter()._expand_help(action)
            what, _, default = text.partition(" (default: ")
            yield action, what, default.removesuffix(")")


def shown(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def test_all_commands_are_looked_at() -> None:
    some = {"generate", "chat", "demo", "serve", "info", "trace view", "bench throughput", "bench simulate"}
    assert some <= set(PARSERS)
    assert sum(len(list(options(command))) for command in PARSERS) > 280


@pytest.mark.parametrize("command", PARSERS)
def test_each_option_says_what_it_is_for_and_its_default(command: str) -> None:
    for action, what, default in options(command):
        where = action.option_strings or action.dest
        assert what, where
        assert "config.py" not in what, where
        is_switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
        value = action.default
        if is_switch or NOTHING & {*action.option_strings} or (action.required and value is None):
            assert not default, where
        elif value in (None, [], argparse.SUPPRESS):
            assert default, where
        else:
            in_words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            assert default.strip("'") in (in_words, json.dumps(value)), where


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    return said.out


@pytest.mark.parametrize("indentation", ["    ", ""])  # Python 3.13 takes it out of a docstring
def test_a_docstring_says_what_an_option_is_for(indentation: str) -> None:
    text = f"Args:\n{indentation}port: 0: one that is free\n"
    config = dataclasses.make_dataclass("Options", ["port"], namespace={"__doc__": text})
    assert said_of(config) == {"port": "0: one that is free"}


def test_a_long_help_has_pages_which_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    first = printed(capsys, "serve", "--help")
    assert len(first.splitlines()) < 50
    assert printed(capsys, "--help", "serve") == first
    words = re.findall(r"--help=(\S+)", first)
    assert {"server", "cache", "model", "all"} <= set(words)
    pages = [printed(capsys, "serve", f"--help={word}") for word in words]
    named = [set(re.findall(r"^ +(--[\w-]+)", page, re.MULTILINE)) for page in (first, *pages)]
    named[0].discard("--help")
    assert set.union(*named[:-1]) == named[-1]  # what is in none of them is not anywhere
    assert sum(len(page) for page in named[:-1]) == len(named[-1])  # nor twice
    assert all(named)


@pytest.mark.parametrize("word", ["max-num-seqs", "--max_num_seqs", "NUM-SEQ"])
def test_an_option_is_found_by_a_part_of_its_name(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "serve", f"--help={word}")
    assert "--max-num-seqs N" in page
    assert len(page.splitlines()) < 10


@pytest.mark.parametrize("argv", [("generate", "--help", "nothing"), ("serve", "--help=nothing")])
def test_a_page_that_there_is_not_is_said_above_the_first(argv: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = printed(capsys, argv[0], "--help")
    assert printed(capsys, *argv) == f"folovllm {argv[0]} has no group or option 'nothing'\n\n{first}"


# A seed is drawn.
IN_WORDS = {("generate", "seed"), ("chat", "seed")}


class EnoughError(Exception):
    """The engine's configuration is known."""


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Command and arguments -> the configuration that its engine would have."""

    def configuration(argv: list[str]) -> dict[str, Any]:
        seen: list[Any] = []

        def made(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            seen.append(config)
            raise EnoughError

        def made_apart(self: Any, model: str, *, trace: object, trace_texts: bool, nvtx: bool, **options: Any) -> None:
            del options["observers"], options["log_format"]
            made(self, config_for_llm(model, **options))

        monkeypatch.setattr("folovllm.engine.llm_engine.LLMEngine.__init__", made)
        monkeypatch.setattr("folovllm.serving.engine_process.EngineProcess.__init__", made_apart)
        with pytest.raises(EnoughError):
            main(argv)
        layers = (seen[0].model_config, seen[0].cache_config, seen[0].scheduler_config)
        return {name: getattr(layer, name) for layer in layers for name in vars(layer)}

    return configuration


@pytest.mark.parametrize("argv", [["generate", "x"], ["chat"], ["serve", "--port", "0"]], ids=" ".join)
def test_the_engine_has_the_defaults_that_the_help_names(argv: list[str], engine_of: Any) -> None:
    if argv[0] == "serve":
        pytest.importorskip("fastapi")
    found, named = engine_of(argv), set()
    command = " ".join(word for word in argv[:2] if word in ("generate", "chat", "serve"))
    for action, _, default in options(command):
        if action.dest not in found:
            continue
        named.add(action.dest)
        value = found[action.dest]
        if value is None:  # in words: it is decided when the model is known
            assert not re.fullmatch(r"[\d.]*|on|off|auto", default), action.dest
        elif action.dest == "tokenizer":  # the configuration has taken the model's already
            assert (value, default) == (found["model"], "the model's")
        elif (command, action.dest) in IN_WORDS:
            assert default not in ("", shown(value)), action.dest
        else:
            assert default == shown(value), action.dest
    assert named == found.keys()


def test_a_request_has_the_defaults_that_the_help_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {action.dest: default for action, _, default in options("generate")}

    def add_request(self: Any, request_id: str, prompt: Any, params: SamplingParams, **more: Any) -> None:
        for name in said.keys() & vars(params).keys() - {"seed", "stop", "logprobs"}:  # in words
            assert said[name] == shown(getattr(params, name)), name
        raise ValueError("all of them")

    monkeypatch.setattr("folovllm.engine.llm_engine.LLMEngine.add_request", add_request)
    assert main(["generate", "x"]) == 2
    assert "all of them" in capsys.readouterr().err
