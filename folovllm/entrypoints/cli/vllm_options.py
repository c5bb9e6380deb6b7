"""vLLM's command lines, taken as they are: numbers such as 4k, options in a file, and options without effect here.

    --max_model_len 4k             --max-model-len 4000; 4K is 4096
    --config serve.yaml            the options in a file; what is typed counts more
    --pipeline-parallel-size 1     says what is so anyway; 2 is refused by name

vLLM: utils/argparse_utils.py (FlexibleArgumentParser), engine/arg_utils.py
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from folovllm.engine.defaults import HUB, NEUTRAL
from folovllm.utils.checks import describe, did_you_mean
from folovllm.utils.named_files import read_file, wrong_file

_POWERS = "kmgt"
_SHORT = {"pipeline_parallel_size": "-pp", "data_parallel_size": "-dp"}
_HUB_HELP = {
    "revision": "branch, tag or commit of a model of the hub (default: its main branch)",
    "download_dir": "folder that models of the hub are kept in (default: huggingface_hub's cache)",
}


def human_readable_int(text: str) -> int:
    """1k is 1000 and 1K is 1024; so are m, g and t. With the small letters also 25.6k."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    match = re.fullmatch(r"(\d+)([KMGT])|(\d+(?:\.\d+)?)([kmgt])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, such as 4096, 4k or 4K, got {text!r}")
    whole, binary, decimal, power = match.groups()
    if binary:
        return int(whole) * 1024 ** (_POWERS.index(binary.lower()) + 1)
    value = round(float(decimal) * 1000 ** (_POWERS.index(power) + 1), 3)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(value)


def with_dashes(typed: Iterable[str]) -> list[str]:
    """Options with the dashes that their names have: --max_model_len=8 is --max-model-len=8."""
    words = list(typed)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            words[place] = name.replace("_", "-") + equals + value
    return words


def words_of_config(path: str, parser: argparse.ArgumentParser, typed: Sequence[str]) -> list[str]:
    """The options in a YAML file, {"max-num-seqs": 8, "enforce-eager": true}, as they would be typed; none of those
    that `typed` has already.

    Raises:
        ValueError: it cannot be read, or names an option that the command does not have.
    """
    import yaml

    try:
        options = yaml.safe_load(read_file("--config", path))
    except (yaml.YAMLError, RecursionError) as error:
        raise wrong_file("--config", "be a file of YAML", path, " ".join(str(error).split())) from None
    if not isinstance(options, dict):
        raise wrong_file("--config", "be a file of options in YAML, such as `port: 8000`", path, "it has none")
    blank: list[Any] = []
    space = argparse.Namespace(**{action.dest: blank for action in parser._actions})
    parser.parse_known_args(typed, space)
    words: list[str] = []
    for name, value in options.items():
        option = "--" + str(name).replace("_", "-")
        action = parser._option_string_actions.get(option)
        if action is None or action.dest in ("config", "help"):
            hint = did_you_mean(option, parser._option_string_actions)
            raise wrong_file("--config", "have options of this command", path, f"{name!r} is none; {hint}".strip("; "))
        if getattr(space, action.dest) is blank:
            words += _words(option, action, value)
    return words


def _words(option: str, action: argparse.Action, value: Any) -> list[str]:
    is_switch = action.nargs == 0
    if is_switch != isinstance(value, bool) or value is None:
        must = "true or false" if is_switch else "a value"
        raise ValueError(f"{option} in --config must be {must}, got {describe(value)}")
    if value is True:
        return [option]
    if is_switch:
        off = "--no" + option[1:]
        return [off] if off in action.option_strings else []
    if isinstance(value, list) and isinstance(action, argparse._AppendAction):
        return [f"{option}={each}" for each in value]
    return [f"{option}={json.dumps(value) if isinstance(value, (dict, list)) else value}"]


class OneModel(argparse.Action):
    """MODEL or --model MODEL: both, if they are the same."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        if vars(namespace).setdefault("named", value) != value:
            parser.error(f"model must be given once, got {namespace.named!r} and {value!r}")
        namespace.model = value


def add_vllm_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of vLLM's engine that are no fields of ours."""
    for name in HUB:
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, default=argparse.SUPPRESS, metavar="VALUE", help=_HUB_HELP[name])
    text = "taken with the value that says what is so anyway; any other is refused"
    group = parser.add_argument_group("options of vLLM's without which nothing is different here", text)
    for name, values in NEUTRAL.items():
        given = [value for value in values if value is not None]
        if not given:
            continue
        options = ["--" + name.replace("_", "-"), *([_SHORT[name]] if name in _SHORT else [])]
        how: dict[str, Any] = {"type": type(given[0]), "metavar": "VALUE"}
        if isinstance(given[0], bool):
            how = {"action": argparse.BooleanOptionalAction}
        is_logging = len(given) > 1 and given[0] is False
        both = "statistics are at /metrics and never logged, on or off (default: off)" if is_logging else ""
        shown = " or ".join("off" if value is False else str(value) for value in given)
        group.add_argument(
            *options, dest=name, default=argparse.SUPPRESS, help=both or f"{shown} alone (default: {given[0]})", **how
        )
