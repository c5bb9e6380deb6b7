"""What each milestone's engine is made with: common options, a KV cache of the same size in its own words, --set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from milestones.spec import Milestone, MilestoneError

BLOCK_SIZE = 16  # tokens; what CacheConfig has when nothing is said
Settings = dict[str, dict[str, Any]]


def parse_settings(texts: Sequence[str], names: Sequence[str]) -> Settings:
    """`m3.num_kv_blocks=64` -> {"m3": {"num_kv_blocks": 64}}; a value that is no number or boolean is text."""
    settings: Settings = {name: {} for name in names}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key and value):
            raise MilestoneError(f"--set must be mK.field=value, got {text!r}")
        if name not in settings:
            raise MilestoneError(f"--set {text}: {name} is not measured here, only {', '.join(names)}")
        settings[name][key] = _value(value)
    return settings


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def engine_options(
    args: argparse.Namespace, milestone: Milestone, common: dict[str, Any], own: dict[str, Any]
) -> dict[str, Any]:
    """What a milestone's LLM is made with; what --set says goes before anything else."""
    options = dict(common)
    if args.kv_tokens is not None:
        longest, block = own.get("max_model_len", common["max_model_len"]), own.get("block_size", BLOCK_SIZE)
        options |= cache_settings(milestone.number, args.kv_tokens, longest, block, args.requests)
    return options | own


def cache_settings(
    number: int, kv_tokens: int, max_model_len: int, block_size: int, num_requests: int
) -> dict[str, Any]:
    """How milestone `number` is told that its KV cache has room for `kv_tokens` tokens, and for no more.

    m1 runs one sequence at a time and has room for that one, whatever is said. m2 reserves max_model_len for each
    sequence. From m3 on the cache is made of blocks, and the number of sequences is no limit of its own.
    """
    if kv_tokens < max_model_len:
        raise MilestoneError(f"kv-tokens must be at least max_model_len ({max_model_len}), got {kv_tokens}")
    if number <= 1:
        return {}
    if number == 2:
        return {"max_num_seqs": kv_tokens // max_model_len}
    return {"num_kv_blocks": kv_tokens // block_size, "block_size": block_size, "max_num_seqs": num_requests}
