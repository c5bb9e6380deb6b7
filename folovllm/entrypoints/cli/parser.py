"""Arguments that several commands share, and a parser whose errors are one line that says what is right.

vLLM: utils/argparse_utils.py
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.milestone import MILESTONE
from folovllm.sampling_params import SamplingParams
from folovllm.utils.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, no guessing of abbreviated options, a suggestion for a misspelt one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        self.set_defaults(parser=self)

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Like parse_args; the result also has `parser`, the chosen command's, and `program` and `argv`, as typed."""
        typed = list(sys.argv[1:] if argv is None else argv)
        args, unknown = self.parse_known_args(typed)
        args.program, args.argv = self.prog, typed
        if unknown:
            chosen: Parser = args.parser
            known = [option for action in chosen._actions for option in action.option_strings]
            hint = did_you_mean(unknown[0].partition("=")[0], known)
            chosen.error(f"unknown argument {unknown[0]!r}" + (f"; {hint}" if hint else ""))
        return args

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {one_line(message)} (see {self.prog} --help)\n")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something, as they are typed: not None, [] or the False of a plain switch."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default == [] or isinstance(action.default, bool):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default="embedded",
        help="a local Hugging Face folder, a hub id, or 'embedded', the small model that ships here",
    )
    group.add_argument("--tokenizer", help="folder or hub id of another tokenizer")
    add_dtype(group)
    group.add_argument("--device", help="cpu, cuda or cuda:<index>; picked when not given")
    group.add_argument("--max-model-len", type=int, metavar="N", help="longest prompt and output together, in tokens")
    group.add_argument("--load-format", default="auto", help="auto, or dummy: random weights of the model's shape")


def add_dtype(parser: Any) -> None:
    text = "auto, float32, bfloat16 or float16; auto: the checkpoint's own where this machine is fast with it"
    parser.add_argument("--dtype", metavar="NAME", type=dtype_name, default="auto", help=text)


def dtype_name(text: str) -> str:
    try:
        return ModelConfig("embedded", dtype=text).dtype
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def model_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for LLM(), checked: a wrong value is refused here, before anything heavy is imported."""
    from folovllm.config import EngineConfig
    from folovllm.model_files import resolve_model_path

    names = ("model", "tokenizer", "dtype", "device", "max_model_len", "load_format")
    kwargs = engine_kwargs(args) | {name: getattr(args, name) for name in names}
    kwargs.pop("seed", None)  # that of the sampling, by the same name
    EngineConfig.from_kwargs(**kwargs)
    resolve_model_path(args.model, weights=args.load_format != "dummy", tokenizer=args.tokenizer is None)
    return kwargs


_CONFIGS = (ModelConfig, CacheConfig, SchedulerConfig)
_ENGINE_HELP = {
    "tokenizer": "folder or hub id of another tokenizer",
    "dtype": "auto, float32, bfloat16 or float16",
    "device": "cpu, cuda or cuda:<index>; picked when not given",
    "max_model_len": "longest prompt and output together, in tokens",
    "block_size": "tokens in a block of the KV cache",
    "num_kv_blocks": "blocks of the KV cache, whatever memory there is",
    "gpu_memory_utilization": "share of a GPU's memory that all of it may take",
    "max_num_seqs": "most sequences in a step",
    "max_num_batched_tokens": "most tokens in a step",
    "policy": "who comes first: fcfs or priority",
}
_SPELLINGS = {"policy": ["--scheduling-policy"], "num_kv_blocks": ["--num-gpu-blocks-override"]}


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for every field of the engine's configuration, by its name, except for those that the parser has. What
    is not given is not in the result."""
    group = parser.add_argument_group("engine")
    for config in _CONFIGS:
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            option = "--" + field.name.replace("_", "-")
            is_later = field.metadata.get("since", 0) > MILESTONE
            if is_later or field.name == "model" or option in parser._option_string_actions:
                continue
            names = [option, *_SPELLINGS.get(field.name, ())]
            text = _ENGINE_HELP.get(field.name, "see folovllm/config.py")
            if field.default not in (None, dataclasses.MISSING):
                text += f" (default: {field.default})"
            common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
            kinds = [
                kind for kind in (*typing.get_args(hints[field.name]), hints[field.name]) if kind is not type(None)
            ]
            if bool in kinds:
                group.add_argument(*names, action=argparse.BooleanOptionalAction, **common)
            else:
                kind = int if int in kinds else float if float in kinds else str
                group.add_argument(*names, type=kind, metavar="N" if kind is not str else "NAME", **common)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of the options that add_engine_arguments() made."""
    fields = [field for config in _CONFIGS for field in dataclasses.fields(config)]
    return {field.name: getattr(args, field.name) for field in fields if field.name != "model" and field.name in args}


# option -> (type, help); the default of each is SamplingParams' own unless a command names another.
_SAMPLING: dict[str, tuple[Any, str]] = {
    "max_tokens": (int, "stop after this many new tokens"),
    "min_tokens": (int, "do not stop before this many"),
    "temperature": (float, "0 is greedy, higher is more varied"),
    "top_p": (float, "keep the smallest set of tokens whose probability reaches this"),
    "top_k": (int, "keep this many of the likeliest tokens; -1: all"),
    "min_p": (float, "drop tokens less likely than this times the likeliest"),
    "seed": (int, "the same seed gives the same text"),
    "repetition_penalty": (float, "above 1: against tokens of the prompt and the output"),
    "presence_penalty": (float, "against tokens that occurred in the output, once each"),
    "frequency_penalty": (float, "against tokens that occurred in the output, once per occurrence"),
}


def add_sampling_arguments(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in _SAMPLING.items():
        default = defaults.get(name, getattr(SamplingParams, name))
        option, metavar = f"--{name.replace('_', '-')}", "N" if kind is int else "X"
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop at this text; may be given again")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-text token")


def sampling_params(args: argparse.Namespace, **more: Any) -> SamplingParams:
    values = {name: getattr(args, name) for name in (*_SAMPLING, "stop", "ignore_eos")}
    return SamplingParams(**values, **more)
