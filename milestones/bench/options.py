"""Which options belong to which workload of `python -m milestones bench`, and what they are when not given."""

from __future__ import annotations

import argparse
from typing import Any

from milestones.spec import MilestoneError

# A workload -> its own options and their defaults. An option of another workload is refused, not ignored.
WORKLOADS: dict[str, dict[str, Any]] = {
    "requests": {
        "requests": 32,
        "prompt_len": (16, 256),
        "output_len": (16, 256),
        "max_model_len": None,
        "kv_tokens": None,
    },
    "decode": {"batch": [1, 8, 64], "context": 128, "steps": 32, "dtype": "float32"},
    "long-prompt": {
        "decodes": 8,
        "long_len": 2000,
        "new_tokens": 128,
        "shorts": 0,
        "sweep_budget": None,
        "sweep_threshold": None,
        "dtype": "float32",
    },
    "shared-prefix": {"prefix": 1000, "suffix": 20, "prompts": 6, "new_tokens": 8, "dtype": "float32"},
}
# A cold request and a warm one; a gap between two tokens; a threshold of 0 is none.
AT_LEAST = {"prompts": 2, "new_tokens": 2, "sweep_threshold": 0}


def add_workload_options(command: argparse.ArgumentParser) -> None:
    """All with None for "not given", so that settle() can tell."""
    text = (
        "requests: all at once, tokens/s (the default). decode: the time of a step. long-prompt: a prompt arrives "
        "among steady decodes, the worst gap between tokens. shared-prefix: one request after another, the time to "
        "first token"
    )
    command.add_argument("--workload", choices=list(WORKLOADS), default="requests", help=text)

    group = command.add_argument_group("--workload requests")
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    pair: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("MIN", "MAX")}
    group.add_argument("--requests", **number, help="all there at the start (default: 32)")
    group.add_argument("--prompt-len", **pair, help="prompt tokens, uniform (default: 16 256)")
    group.add_argument("--output-len", **pair, help="new tokens, uniform (default: 16 256)")
    text = "of every engine (default: as long as the longest request)"
    group.add_argument("--max-model-len", **number, help=text)
    text = "give every milestone a KV cache of as many tokens: slots in m2, blocks from m3 on"
    group.add_argument("--kv-tokens", **number, help=text)

    group = command.add_argument_group("--workload decode")
    group.add_argument("--batch", type=int, nargs="+", metavar="N", help="sequences at a time (default: 1 8 64)")
    group.add_argument("--context", **number, help="tokens of each prompt (default: 128)")
    group.add_argument("--steps", **number, help="measured steps of a round (default: 32)")

    group = command.add_argument_group("--workload long-prompt")
    group.add_argument("--decodes", **number, help="requests that decode steadily (default: 8)")
    group.add_argument("--long-len", **number, help="tokens of the prompt that arrives (default: 2000)")
    text = "one milestone with each of these max_num_batched_tokens, instead of several milestones"
    group.add_argument("--sweep-budget", type=int, nargs="+", metavar="N", help=text)
    text = "the same with long_prefill_token_threshold; none is the default, shares"
    group.add_argument("--sweep-threshold", type=int_or_none, nargs="+", metavar="N", help=text)
    group.add_argument("--shorts", **number, help="short prompts right behind the long one (default: 0)")

    group = command.add_argument_group("--workload shared-prefix")
    group.add_argument("--prefix", **number, help="tokens that the prompts share (default: 1000)")
    group.add_argument("--suffix", **number, help="tokens that are each prompt's own (default: 20)")
    group.add_argument("--prompts", **number, help="requests of a round, one after another (default: 6)")

    group = command.add_argument_group("--workload decode, long-prompt or shared-prefix")
    text = "tokens that a request generates (default: 128 for long-prompt, 8 for shared-prefix)"
    group.add_argument("--new-tokens", **number, help=text)
    text = "float32 (the default) is where the milestones must give the same tokens"
    group.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help=text)


def int_or_none(text: str) -> int | None:
    return None if text == "none" else int(text)


def settle(args: argparse.Namespace) -> None:
    """Give the workload's options that were not given their defaults.

    Raises:
        MilestoneError: an option of another workload, or a number that is too small.
    """
    own = WORKLOADS[args.workload]
    for name in {name: None for options in WORKLOADS.values() for name in options}:
        given = getattr(args, name)
        if name not in own:
            if given is not None:
                owners = [workload for workload, options in WORKLOADS.items() if name in options]
                raise MilestoneError(
                    f"{flag(name)} must not be given with --workload {args.workload}: it is for {' and '.join(owners)}"
                )
        elif given is None:
            setattr(args, name, own[name])
        elif args.workload != "requests":  # whose numbers Lengths.draw checks
            _check_numbers(name, given)


def _check_numbers(name: str, given: Any) -> None:
    least = AT_LEAST.get(name, 1)
    for number in given if isinstance(given, list) else [given]:
        if isinstance(number, int) and number < least:
            raise MilestoneError(f"{flag(name)} must be at least {least}, got {number}")


def flag(name: str) -> str:
    return name.replace("_", "-")


def check_shape(shape: str | None) -> None:
    from folovllm.bench.shapes import SHAPES

    if shape is not None and shape not in SHAPES:
        raise MilestoneError(f"shape must be one of {', '.join(SHAPES)}, got {shape!r}")
