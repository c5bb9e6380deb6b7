"""`folovllm info`: versions, devices, which kernels and backends can run here, and why others cannot. `collect-env`:
what a report of a fault needs to say of a machine.

vLLM: entrypoints/cli/collect_env.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
from importlib.metadata import distributions, requires
from typing import Any

_VARIABLES = re.compile(r"FOLOVLLM|OMP_|KMP_|MKL_|GOMP_|TORCH|TRITON|CUDA|NVIDIA|NCCL|HF_|RAY_|LD_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="versions, devices, and what can run here",
        description="What this machine can do, and what the engine would pick on it.",
    )
    text = "whose KV cache is sized: a local folder or a hub id (default: the embedded model)"
    parser.add_argument("--model", help=text)
    parser.add_argument("--json", action="store_true", help="print it as one JSON object")
    parser.set_defaults(run=run)
    text = "print what a report of a fault needs: copy all of it"
    commands.add_parser("collect-env", help=text, description=text.capitalize()).set_defaults(run=collect_env)


def run(args: argparse.Namespace) -> int:
    data = collect(args.model)
    if args.json:
        print(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_facts(data)
        print("\n`folovllm collect-env` prints what a report of a fault needs")
    return 0


def collect_env(_: argparse.Namespace) -> int:
    from torch.utils.collect_env import get_pretty_env_info

    print_facts(collect())
    used = {re.split(r"[^\w.-]", text)[0].lower() for text in requires("folovllm") or ()}
    there = {each.name.lower(): each.version for each in distributions()}
    packages = [f"{name}=={there[name]}" for name in sorted(used & there.keys())]
    found = sorted((name, value) for name, value in os.environ.items() if _VARIABLES.match(name))
    variables = [f"{name}={'(not shown)' if _SECRET.search(name) else value}" for name, value in found]
    print("", get_pretty_env_info(), "", "Packages:", *packages, "", "Environment:", *variables, sep="\n")
    return 0


def collect(model: str | None = None) -> dict[str, Any]:
    import torch

    from folovllm.attention.backend import BACKENDS, get_backend_class, select_backend
    from folovllm.entrypoints.cli.machine import cpu_features, hardware, versions
    from folovllm.utils.devices import cpu_has_bf16_units, default_device
    from folovllm.utils.memory import GIB, free_memory_bytes
    from folovllm.utils.threads import wait_policy

    device = torch.device(default_device())
    return {
        "versions": versions(),
        "hardware": hardware(),
        "cpu_features": cpu_features(),
        "cpu_has_bf16_units": cpu_has_bf16_units(),
        "wait_policy": wait_policy(),
        "default_device": str(device),
        "free_memory_gib": round(free_memory_bytes(device) / GIB, 1),
        "auto_dtype": {name: _auto_dtype(name, device) for name in ("bfloat16", "float32")},
        "attention_backend": select_backend(None, device).name,
        # name -> why it cannot run, None if it can; in order of preference
        "attention_backends": {name: get_backend_class(name).unavailable_reason(device) for name in BACKENDS},
        "layers": _layers(device),
        "kv_cache": _kv_cache(model, device),
    }


def _kv_cache(model: str | None, device: Any) -> dict[str, Any]:
    """The KV cache that an engine with default settings would get now, before the weights have taken their part."""
    from folovllm.config import EngineConfig
    from folovllm.engine.builder.budgets import resolve_scheduler_config
    from folovllm.model_loader import resolve_dtype, resolve_max_model_len
    from folovllm.model_loader.hf_config import load_hf_config
    from folovllm.models.decoder import DecoderSpec
    from folovllm.models.registry import model_spec
    from folovllm.worker.kv_cache import kv_bytes_per_token, kv_cache_groups
    from folovllm.worker.memory import size_kv_cache

    config = EngineConfig.from_kwargs(model=model)
    hf_config = load_hf_config(config.model_config)
    longest = resolve_max_model_len(hf_config, None)
    limits = resolve_scheduler_config(config.scheduler_config, longest)
    spec = model_spec(config.model_config.model_impl, hf_config, longest)
    groups = kv_cache_groups(spec, limits, config.cache_config.block_size)
    token_bytes = kv_bytes_per_token(spec, resolve_dtype(config.model_config, hf_config, device), groups)
    size = size_kv_cache(token_bytes, config.cache_config, limits, device, measure_step=lambda: 0, groups=groups)
    same = {name: getattr(size, name) for name in ("num_blocks", "block_size", "num_swap_blocks")}
    impl = "folovllm" if isinstance(spec, DecoderSpec) else "transformers"
    named = {"model": config.model_config.model, "model_impl": impl}
    return {**named, "token_bytes": token_bytes, **same, "text": str(size)}


def _auto_dtype(checkpoint: str, device: Any) -> str:
    """What dtype="auto" comes to for a checkpoint of this dtype."""
    import torch
    from transformers import PreTrainedConfig

    from folovllm.config import ModelConfig
    from folovllm.model_loader import resolve_dtype

    own = PreTrainedConfig(dtype=getattr(torch, checkpoint))
    return str(resolve_dtype(ModelConfig("embedded"), own, device)).removeprefix("torch.")


def _layers(device: Any) -> dict[str, str | None]:
    """What runs products and layers: name -> why it cannot, None if it can; in order of preference."""
    from folovllm.attention.backend import get_backend_class
    from folovllm.attention.backends.triton import kernels_unavailable_reason

    if device.type == "cpu":
        return {"compiled": get_backend_class("cpu").unavailable_reason(device), "torch": None}
    return {"triton": kernels_unavailable_reason(device), "torch": None}


def say_what_is_slow(engine: Any) -> None:
    """A line where the CPU kernels cannot run, unless the user did not want them. An engine is shown to it."""
    from folovllm.entrypoints.commands import notes

    reason = _layers(engine.device).get("compiled")
    if reason is not None and not reason.startswith("FOLOVLLM_CPU_KERNELS"):
        cost = "torch's operators take their place, and a token takes several times as long"
        notes.print(f"the CPU kernels cannot run ({reason}): {cost}", style="yellow", markup=False)


def print_facts(data: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from folovllm.entrypoints.cli.console import PlainConsole

    console = PlainConsole()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    hardware = data["hardware"]
    versions = {name: f"{name} {version}" for name, version in data["versions"].items()}
    facts.add_row("system", f"{hardware['system']}, {versions.pop('python')}")
    facts.add_row("versions", ", ".join(versions.values()))
    facts.add_row("CPU", f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} threads used")
    units = "has bf16 units" if data["cpu_has_bf16_units"] else "no bf16 units"
    facts.add_row("CPU can do", f"{', '.join(data['cpu_features']) or 'unknown'} ({units})")
    facts.add_row("threads wait", data["wait_policy"])
    facts.add_row(
        "memory",
        f"{hardware['memory_gib']} GiB, {data['free_memory_gib']} GiB free on {data['default_device']}"
        + ("" if hardware.get("gpus") else "; no GPU that torch can use"),
    )
    for number, gpu in enumerate(hardware.get("gpus", [])):
        facts.add_row(f"GPU {number}", gpu)
    choices = [f"{chosen} for {own} checkpoints" for own, chosen in data["auto_dtype"].items()]
    facts.add_row('dtype "auto"', ", ".join(choices))
    cache = data["kv_cache"]
    facts.add_row("KV cache", f"{cache['model']}: {cache['text']}")
    facts.add_row("model_impl", cache["model_impl"])
    console.print(facts)

    table = Table("runs", "", "with", box=None, pad_edge=False)
    layers = data["layers"]
    picked_layers = next(name for name, reason in layers.items() if reason is None)
    groups = {"attention": (data["attention_backend"], data["attention_backends"]), "layers": (picked_layers, layers)}
    for group, (picked, reasons) in groups.items():
        table.add_row(group, Text("picked", style="green"), picked)
        if others := [name for name, reason in reasons.items() if reason is None and name != picked]:
            table.add_row("", "available", ", ".join(others))
        for why in dict.fromkeys(reason for reason in reasons.values() if reason is not None):
            names = ", ".join(name for name, reason in reasons.items() if reason == why)
            table.add_row("", Text("cannot", style="yellow"), Text.assemble(names, (f": {why}", "dim")))
    console.print()
    console.print(table)
