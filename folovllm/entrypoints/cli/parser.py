"""The root's parser: its errors say what is right. And what its help says of options.

vLLM: utils/argparse_utils.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from folovllm.config import ModelConfig
from folovllm.entrypoints import commands
from folovllm.utils.checks import did_you_mean

HELP = {
    "model": "a local Hugging Face folder, a hub id, or 'embedded', the small model that ships here",
    "tokenizer": "folder or hub id of another tokenizer",
    "dtype": "auto, float32, bfloat16 or float16; auto: the checkpoint's own where this machine is fast with it",
    "device": "cpu, cuda or cuda:<index>; picked when not given",
    "max_model_len": "longest prompt and output together, in tokens",
    "load_format": "auto, or dummy: random weights of the model's shape",
    "block_size": "tokens in a block of the KV cache",
    "num_kv_blocks": "blocks of the KV cache, whatever memory there is; also --num-gpu-blocks-override",
    "gpu_memory_utilization": "share of a GPU's memory that all of it may take",
    "max_num_seqs": "most sequences in a step",
    "max_num_batched_tokens": "most tokens in a step",
    "policy": "who comes first: fcfs or priority; also --scheduling-policy",
    "max_tokens": "stop after this many new tokens",
    "min_tokens": "do not stop before this many",
    "temperature": "0 is greedy, higher is more varied",
    "top_p": "keep the smallest set of tokens whose probability reaches this",
    "top_k": "keep this many of the likeliest tokens; -1: all",
    "min_p": "drop tokens less likely than this times the likeliest",
    "seed": "the same seed gives the same text",
    "repetition_penalty": "above 1: against tokens of the prompt and the output",
    "presence_penalty": "against tokens that occurred in the output, once each",
    "frequency_penalty": "against tokens that occurred in the output, once per occurrence",
    "stop": "stop at this text; may be given again",
    "ignore_eos": "go on after the end-of-text token",
}
# vLLM's names of two fields.
_SPELLINGS = {"--scheduling-policy": ("policy", str), "--num-gpu-blocks-override": ("num_kv_blocks", int)}


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
        if action.default in (None, []) or isinstance(action.default, bool) or "default: " in (action.help or ""):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def explain(parser: argparse.ArgumentParser) -> None:
    """What the names of the engine's and the sampling's options do not say, and vLLM's spellings of them."""
    for action in parser._actions:
        if text := HELP.get(action.dest):
            action.help = f"{text} ({action.help})" if action.help else text
    for option, (name, kind) in _SPELLINGS.items():
        parser.add_argument(option, dest=name, type=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for every field of the engine's configuration. What is not given is not in the result."""
    commands.add_options(parser, *commands.ENGINE)
    explain(parser)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of them, but for the model."""
    return {name: value for name, value in commands.given(args, *commands.ENGINE).items() if name != "model"}


def add_dtype(parser: Any) -> None:
    parser.add_argument("--dtype", metavar="NAME", type=dtype_name, default="auto", help=HELP["dtype"])


def dtype_name(text: str) -> str:
    try:
        return ModelConfig("embedded", dtype=text).dtype
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
