"""The argument parser of the `folovllm` command: errors that suggest what is right, and what its help says of options.

vLLM: utils/argparse_utils.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from folovllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.engine.defaults import DEFAULTS
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.vllm_options import human_readable_int, json_object, plain_words, words_of_config
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import did_you_mean
from folovllm.vllm_names import HAS_NOT, instead, is_option, names

# What the names of the engine's and the sampling's options do not say. Where None is the default, what it comes to.
HELP = {
    "model": "a local Hugging Face folder, a hub id, or 'embedded', the small one that ships here (default: embedded)",
    "tokenizer": "folder or hub id of another tokenizer (default: the model's)",
    "tokenizer_mode": "auto alone: transformers has no other than fast ones any more",
    "trust_remote_code": "run code that the model's folder brings along",
    "dtype": "auto, float32, bfloat16 or float16; auto: the checkpoint's own where this machine is fast with it",
    "device": "cpu, cuda or cuda:<index> (default: cuda where torch finds a GPU, else cpu)",
    "max_model_len": "longest prompt and output together, in tokens (default: the model's own)",
    "load_format": "auto, or dummy: random weights of the model's shape",
    "model_impl": "folovllm: our decoder; transformers: its own code, with our attention; auto: ours where it can be",
    "skip_tokenizer_init": "load no tokenizer: prompts are token ids, and there is no text",
    "attention_backend": "what computes attention; folovllm info lists them (default: the fastest that can run)",
    "enforce_eager": "no CUDA graphs; on a CPU, layer by layer",
    "max_logprobs": "most log-probabilities that a request may ask for at each token; -1: any number",
    "batch_invariant": "the same bits, whatever else is in the batch; slower",
    "hf_overrides": """fields that are other than config.json says, as JSON: '{"rope_theta": 1e6}' (default: none)""",
    "quantization": "w4a16, w4a8, w8a8 or fp8: round a checkpoint's weights (default: as its config.json says)",
    "quantize_head": "beside --quantization w4a16 and the like: the head's weights in 8 bits, too",
    "block_size": "tokens in a block of the KV cache",
    "num_kv_blocks": "blocks of the KV cache; also --num-gpu-blocks-override (default: what fits into memory)",
    "kv_cache_memory_bytes": "as many blocks as fit into these bytes (default: see --num-kv-blocks)",
    "gpu_memory_utilization": "share of a GPU's memory that all of it may take",
    "swap_space": "GiB of CPU memory for the blocks of preempted sequences; 0: none",
    "enable_prefix_caching": "find what earlier prompts have computed, where a prompt begins alike",
    "kv_cache_dtype": "auto: keys and values are kept in the model's dtype; fp8, int8: in 8 bits",
    "max_num_seqs": "most in a step",
    "max_num_batched_tokens": "most tokens in a step (default: by device and --performance-mode)",
    "enable_chunked_prefill": "let a long prompt come in over several steps",
    "max_num_partial_prefills": "prompts that may come in so at a time",
    "long_prefill_token_threshold": "most tokens of each a step; 0: any number (default: half of what fits)",
    "preemption_mode": "what becomes of a sequence's blocks when memory runs out: recompute, swap, or auto",
    "policy": "who comes first: fcfs or priority; also --scheduling-policy",
    "async_scheduling": "schedule a step before the tokens of the last are known (default: on for a GPU)",
    "max_n": "largest n and best_of that a request may ask for; -1: any number",
    "performance_mode": "interactivity: short gaps between tokens; throughput: fewer and larger steps",
    "tensor_parallel_size": "ranks that have a part of the model each: a GPU, or a share of the CPU's cores",
    "distributed_timeout_seconds": "a rank for which the others wait longer is given up, and the engine with it",
    "max_tokens": "stop after this many new tokens",
    "min_tokens": "do not stop before this many",
    "temperature": "0 is greedy, higher is more varied",
    "top_p": "keep the smallest set of tokens whose probability reaches this",
    "top_k": "keep this many of the likeliest tokens; -1: all",
    "min_p": "drop tokens less likely than this times the likeliest",
    "seed": "the same seed draws the same text",
    "repetition_penalty": "above 1: against tokens of the prompt and the output",
    "presence_penalty": "against tokens that occurred in the output, once each",
    "frequency_penalty": "against tokens that occurred in the output, once per occurrence",
    "stop": "stop at this text; may be given again (default: none)",
    "ignore_eos": "go on after the end-of-text token",
}
# What generate and chat choose: their texts differ from run to run, and LLM makes large steps.
ENTRY = {"seed": "another one each time", "performance_mode": "throughput"}
_GROUPS = {
    SamplingParams: "how tokens are chosen, and when a text ends",
    ModelConfig: "the model",
    CacheConfig: "the KV cache",
    SchedulerConfig: "the scheduler",
    ParallelConfig: "the ranks",
}
# vLLM's other names of fields.
_SPELLINGS = {
    "--scheduling-policy": ("policy", str), "--num-gpu-blocks-override": ("num_kv_blocks", int),
    "-tp": ("tensor_parallel_size", int),
}  # fmt: skip
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("max_num_batched_tokens", "kv_cache_memory_bytes"), human_readable_int),
    "max_model_len": lambda text: -1 if text == "auto" else human_readable_int(text),
    "hf_overrides": json_object,
}


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, no guessing of abbreviated options, a suggestion for a misspelt one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        self.set_defaults(parser=self)

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
            hint = did_you_mean(word, known)
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


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something, as they are typed: not None, [] or the False of a plain switch."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, []) or isinstance(action.default, bool) or "default: " in str(action.help):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def explain(parser: argparse.ArgumentParser, **chosen: object) -> None:
    """What the options of commands.add_options() are for, vLLM's spellings, too. `chosen`: the command's defaults."""
    own = {field.name: field.default for config in (SamplingParams, *commands.ENGINE) for field in fields(config)}
    defaults = own | DEFAULTS | parser._defaults | chosen
    layers = {field.name: config for config in (*reversed(commands.ENGINE), SamplingParams) for field in fields(config)}
    groups = {config: parser.add_argument_group(_GROUPS[config]) for config in (SamplingParams, *commands.ENGINE)}
    for action in parser._actions:
        if action.default is not argparse.SUPPRESS or action.dest not in HELP:
            continue
        action.help, default = HELP[action.dest], defaults[action.dest]
        if action.option_strings:
            action.metavar = {int: "N", float: "X"}.get(action.type, "VALUE")  # type: ignore[call-overload]
            groups[layers[action.dest]]._group_actions.append(action)
            parser._optionals._group_actions.remove(action)
        action.type = _TYPES.get(action.dest, action.type)
        if "(default: " not in action.help:
            action.help += f" (default: {('off', 'on')[default] if isinstance(default, bool) else default})"
    for option, (name, kind) in _SPELLINGS.items():
        parser.add_argument(option, dest=name, type=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for every field of the engine's configuration. What is not given is not in the result."""
    commands.add_options(parser, *commands.ENGINE)
    explain(parser)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of them, and of add_vllm_arguments()'s, but for the model."""
    given = commands.given(args, *commands.ENGINE)
    given |= {name: vars(args)[name] for name in getattr(args, "vllm_names", ()) if name in args}
    return {name: value for name, value in given.items() if name != "model"}


def add_dtype(parser: Any) -> None:
    parser.add_argument("--dtype", metavar="NAME", type=dtype_name, default="auto", help=HELP["dtype"])


def dtype_name(text: str) -> str:
    try:
        return ModelConfig("embedded", dtype=text).dtype
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
