"""vLLM's command lines, taken as they are: numbers such as 4k, keys of JSON, options in a file, and vLLM's own options.

    --max_model_len 4k                    --max-model-len 4000; 4K is 4096
    --speculative-config.method ngram     --speculative-config '{"method": "ngram"}'
    --config serve.yaml                   the options in a file; what is typed counts more
    --pipeline-parallel-size 1            says what is so anyway; 2 is refused by name

vLLM: utils/argparse_utils.py (FlexibleArgumentParser), engine/arg_utils.py
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from folovllm.utils.named_files import read_file, wrong_file
from folovllm.vllm_names import long_option

_POWERS = "kmgt"


def json_object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise argparse.ArgumentTypeError(f"must be an object in JSON, got {text!r}")


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


def plain_words(typed: Iterable[str]) -> list[str]:
    """What was typed, as argparse takes it: --max_model_len=8 is --max-model-len=8, -O3 is --optimization-level 3, and
    --speculative-config.method ngram is a key of the JSON of --speculative-config."""
    words = list(typed)
    end = words.index("--") if "--" in words else len(words)
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    left = iter(words[:end])
    for word in left:
        name, equals, value = word.partition("=")
        if level := re.fullmatch(r"-O=?(\d?)", word):
            plain += ["--optimization-level", level[1]] if level[1] else ["--optimization-level"]
        elif re.fullmatch(r"--?[A-Za-z][\w-]*\.[\w.-]+\+?", name):
            option, *keys = name.removesuffix("+").split(".")
            text = value if equals else next(left, "")
            given = text.split(",") if name[-1] == "+" else _plain(text)
            _put(objects.setdefault(long_option(_dashes(option)), {}), keys, given)
        else:
            plain.append(_dashes(name) + equals + value)
    for option, space in objects.items():
        if any(long_option(word.partition("=")[0]) == option for word in plain):
            raise ValueError(f"{option} must be given as JSON or key by key, got both")
        plain += [option, json.dumps(space)]
    return plain + words[end:]


def _dashes(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _put(space: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """At keys[0], in it at keys[1], and so on; a list grows."""
    for key in keys[:-1]:
        space = space.setdefault(key, {})
    kept = space.get(keys[-1])
    space[keys[-1]] = [*kept, *value] if isinstance(kept, list) and isinstance(value, list) else value


def _plain(text: str) -> Any:
    """JSON, a number such as 4k, or else text."""
    for read in (json.loads, human_readable_int):
        with suppress(ValueError, argparse.ArgumentTypeError):
            return read(text)
    return text


def words_of_config(path: str, parser: argparse.ArgumentParser, typed: Sequence[str]) -> list[str]:
    """The options in a YAML file, {"max-num-seqs": 8, "enforce-eager": true}, as they would be typed; none of those
    that `typed` has already.

    Raises:
        ValueError: it cannot be read, or names another.
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
        off, action = f"--no{option[1:]}", parser._option_string_actions.get(option)
        if option == "--config":
            raise wrong_file("--config", "name no other file", path, f"it has {value!r}")
        if action is not None and getattr(space, action.dest) is not blank:
            continue
        if value is True or (value is False and (action is None or off in parser._option_string_actions)):
            words.append(option if value else off)
        elif isinstance(value, list) and action is not None and action.nargs == "+":
            words += [option, *map(str, value)]
        elif isinstance(value, list) and isinstance(action, argparse._AppendAction):
            words += [f"{option}={each}" for each in value]
        elif value is not False:
            words.append(f"{option}={json.dumps(value) if isinstance(value, (dict, list)) else value}")
    return words


class OneModel(argparse.Action):
    """MODEL or --model MODEL: both, if they are the same."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        if vars(namespace).setdefault("named", value) != value:
            parser.error(f"model must be given once, got {namespace.named!r} and {value!r}")
        namespace.model = value


def add_vllm_arguments(parser: argparse.ArgumentParser, known: dict[str, dict[str, Any]]) -> None:
    """Every argument of vLLM's that is none of ours: vllm_names.py says what becomes of it."""
    text = "taken where nothing is different here, and one line says so; else refused by name, with what to do instead"
    group = parser.add_argument_group("all other options of vllm serve", text)
    added = []
    for name, how in known.items():
        option, others = "--" + name.replace("_", "-"), how.get("spellings", [])
        if ours := parser._option_string_actions.get(option):
            parser._option_string_actions.update((other, ours) for other in others)
            continue
        added.append(name)
        hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _HELP.get(name, argparse.SUPPRESS)}
        group.add_argument(option, *others, dest=name, **hidden, **_KINDS[how["kind"]])
    parser.set_defaults(vllm_names=added)


_HELP = {
    "revision": "branch, tag or commit of a model of the hub (default: its main branch)",
    "download_dir": "folder that models of the hub are kept in (default: huggingface_hub's cache)",
    "hf_token": "a key for the hub; alone: the one that `hf auth login` has kept (default: huggingface_hub's)",
}
_KINDS: dict[str, dict[str, Any]] = {
    "switch": {"action": argparse.BooleanOptionalAction},
    "optional": {"nargs": "?", "const": True},
    "list": {"nargs": "+"},
    "json": {"type": _plain},
    "int": {"type": human_readable_int},
    "float": {"type": float},
    "text": {"type": _plain},
}
"""How a value of each kind is read."""
