"""The argument parser of the `folovllm` command: errors that suggest what is right, and options made of dataclasses.

A field is an option: its type says how its value is read, and a line `name: text` of the class's docstring what it is
for. A field without such a line is none.

vLLM: utils/argparse_utils.py, engine/arg_utils.py (get_kwargs)
"""

from __future__ import annotations

import argparse
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from folovllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.engine.builder.defaults import DEFAULTS
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.vllm_options import human_readable_int, json_object, plain_words, words_of_config
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import did_you_mean
from folovllm.vllm_names import HAS_NOT, instead, is_option, names

# What generate and chat choose: their texts differ from run to run, and LLM makes large steps.
ENTRY = {"seed": "another one each time", "performance_mode": "throughput"}
_GROUPS = {
    SamplingParams: "how tokens are chosen, and when a text ends",
    ModelConfig: "the model",
    CacheConfig: "the KV cache",
    SchedulerConfig: "the scheduler",
    ParallelConfig: "the ranks",
}
# Other names of options.
_SPELLINGS = {
    "policy": ["--scheduling-policy"], "num_kv_blocks": ["--num-gpu-blocks-override"], "tensor_parallel_size": ["-tp"],
    "max_queue": ["--max-num-queued-reqs"],
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, no guessing of abbreviated options, a suggestion for a misspelt one, and a help by
    groups of options. in_pages: `--help` alone shows what is in none, and names the groups."""

    def __init__(self, *, in_pages: bool = False, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, add_help=False, **kwargs)
        text = "show this; a group, an option or a part of its name shows these, and all everything"
        self.add_argument("-h", "--help", action=_Help, nargs="?", metavar="GROUP", help=text)
        self.in_pages = in_pages
        self.set_defaults(parser=self)

    def page(self, word: str | None) -> str:
        """The help of a command, of a group's title or an option's name, or of a part of these. None: all, or the first
        page."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                return str(action.choices[word].page(None))
        if word == "all" or (word is None and not self.in_pages):
            return self.format_help()
        shown = {
            str(group.title): [each for each in group._group_actions if each.help is not argparse.SUPPRESS]
            for group in self._action_groups
        }
        groups = {title: actions for title, actions in shown.items() if actions and title not in _NO_GROUPS}
        formatter = self._get_formatter()
        if word is None:
            formatter.add_usage(None, [self._actions[0], *self._get_positional_actions()], [])
            formatter.add_text(self.description)
            found = {title: shown[title] for title in _NO_GROUPS}
        else:
            wanted = word.lower().lstrip("-").replace("_", "-")
            each_shown = (each for actions in shown.values() for each in actions)
            options = [each for each in each_shown if any(wanted in option for option in each.option_strings)]
            found = {title: actions for title, actions in groups.items() if wanted in title.lower()}
            found = found or {f"options with {wanted!r}": options}
            if not any(found.values()):
                return f"{self.prog} has no group or option {word!r}\n\n{self.page(None)}"
        for title, actions in found.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        if word is not None:
            return formatter.format_help()
        words = {title: max(re.findall(r"\w+", title), key=len) for title in groups}
        lines = [f"  --help={words[title]:<11} {title} ({len(actions)})" for title, actions in groups.items()]
        return formatter.format_help() + "\n".join(["\nmore options, by group:", *lines, "  --help=all", ""])

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Like parse_args; the result also has `parser`, the chosen command's, and `program` and `argv`, as typed."""
        typed = plain_words(sys.argv[1:] if argv is None else argv)
        args, unknown = self.parse_known_args(typed)
        if getattr(args, "config", None) is not None and isinstance(args.parser, Parser):
            typed[1:1] = words_of_config(args.config, args.parser, typed[1:])  # the command comes first
            args, unknown = self.parse_known_args(typed)
        args.program, args.argv = self.prog, typed
        if unknown:
            chosen: Parser = args.parser
            known = [option for action in chosen._actions for option in action.option_strings]
            word = unknown[0].partition("=")[0]
            if is_option(word):
                chosen.error(
                    f"{word} must be left out of {chosen.prog}: {HAS_NOT}; {instead(word[2:].replace('-', '_'))}"
                )
            hint = did_you_mean(word, known) if word.startswith("-") else ""
            chosen.error(f"unknown argument {unknown[0]!r}" + (f"; {hint}" if hint else ""))
        return args

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            is_theirs = isinstance(action, argparse._SubParsersAction) and value in names()["commands"]
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            if hint := f"{HAS_NOT}: {names()['commands'][value]}" if is_theirs else hint:
                error.message += f"; {hint}"
            raise

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {one_line(message)} (see {self.prog} --help)\n")


_NO_GROUPS = ("positional arguments", "options")  # argparse's own


class _Help(argparse._HelpAction):
    """vLLM: utils/argparse_utils.py (--help=GROUP)"""

    def __init__(self, nargs: str, metavar: str, **given: Any) -> None:
        super().__init__(**given)
        self.nargs, self.metavar = nargs, metavar

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        print(parser.page(values), end="")
        parser.exit()


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something, as they are typed: not None, [] or the False of a plain switch."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, []) or isinstance(action.default, bool) or "default: " in str(action.help):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


@contextmanager
def needing(extras: str, what: str) -> Iterator[None]:
    """Raises ValueError: what the block imports is not installed; how it is, in a clone or without one."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{what} needs the package {error.name}: {how_to_install(extras)}") from error


def how_to_install(extras: str) -> str:
    if (Path(__file__).parents[3] / "pyproject.toml").exists():
        return f"pip install -e '.[{extras}]' in the clone"
    return f"pip install 'folovllm[{extras}]'"


def one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def said_of(config: type[Any]) -> dict[str, str]:
    """Field -> what the class's docstring says of it."""
    names = {field.name for field in fields(config)}
    lines = re.findall(r"^ *(\w+): (.+)$", config.__doc__ or "", re.MULTILINE)
    return {name: text for name, text in lines if name in names}


def add_fields(parser: argparse.ArgumentParser, config: type[Any], *only: str, **chosen: Any) -> None:
    """An option for each field, or for some. What is not given is not in the result. `chosen`: defaults of the command,
    to be told of; `how` of add_argument() for a field whose type does not say it; and the `title` of a group."""
    title = chosen.pop("title", None if only else _GROUPS.get(config))
    group: Any = parser.add_argument_group(title) if title else parser
    how, texts, hints = chosen.pop("how", {}), said_of(config), typing.get_type_hints(config)
    for field in fields(config):
        if field.name not in (only or texts) or any(action.dest == field.name for action in parser._actions):
            continue
        text = texts[field.name]
        if "(default: " not in text:
            default = {field.name: field.default, **DEFAULTS, **parser._defaults, **chosen}[field.name]
            text += f" (default: {('off', 'on')[default] if isinstance(default, bool) else default})"
        options = ["--" + field.name.replace("_", "-"), *_SPELLINGS.get(field.name, ())]
        read = {**_reading(hints[field.name]), "dest": field.name, "help": text, **how.get(field.name, {})}
        group.add_argument(*read.pop("options", options), default=argparse.SUPPRESS, **read)


def _reading(hint: Any) -> dict[str, Any]:
    """How the text of an option becomes a value of this type."""
    kinds = {hint, *typing.get_args(hint)}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if words := [word for kind in kinds if typing.get_origin(kind) is typing.Literal for word in typing.get_args(kind)]:
        return {"metavar": f"{{{','.join(words)}}}"}
    if "dict" in str(hint):
        return {"type": json_object, "metavar": "JSON"}
    if int in kinds:
        return {"type": human_readable_int, "metavar": "N"}
    if float in kinds:
        return {"type": float, "metavar": "X"}
    is_list = any(typing.get_origin(kind) in (list, Sequence) for kind in kinds)
    return {"metavar": "VALUE", **({"action": "append"} if is_list else {})}


def add_sampling_arguments(parser: argparse.ArgumentParser, **chosen: Any) -> None:
    """Those of how tokens are chosen, and add_engine_arguments()'s."""
    add_fields(parser, SamplingParams, **chosen)
    add_engine_arguments(parser, **chosen)


def add_engine_arguments(parser: argparse.ArgumentParser, **chosen: Any) -> None:
    """An option for every field of the engine's configuration. What is not given is not in the result."""
    how: dict[str, Any] = {"max_model_len": {"type": lambda text: -1 if text == "auto" else human_readable_int(text)}}
    how["logits_processors"] = {"action": "extend", "nargs": "+", "metavar": "MODULE:CLASS"}
    for config in commands.ENGINE:
        add_fields(parser, config, how=how, **chosen)
    text = """draft tokens: '{"method": "ngram", "num_speculative_tokens": 4}' (default: none)"""
    parser.add_argument("--speculative-config", type=json_object, metavar="JSON", default=argparse.SUPPRESS, help=text)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of them, and of add_vllm_arguments()'s, but for the model."""
    given = commands.given(args, *commands.ENGINE)
    given |= {name: vars(args)[name] for name in getattr(args, "vllm_names", ()) if name in args}
    return {name: value for name, value in given.items() if name != "model"}
