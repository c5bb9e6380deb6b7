"""`folovllm collect-env`: what a report of a fault needs to say of a machine. vLLM: entrypoints/cli/collect_env.py"""

from __future__ import annotations

import argparse
import os
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

_VARIABLES = re.compile(
    r"FOLOVLLM|OMP_|KMP_|MKL_|GOMP_|TORCH|TRITON|CUDA|NVIDIA|NCCL|HF_|RAY_|LD_LIBRARY_PATH|LD_PRELOAD"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


def add_parser(choices: Any) -> None:
    text = "print what a report of a fault needs: copy all of it"
    choices.add_parser("collect-env", help=text, description=text.capitalize()).set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    from torch.utils.collect_env import get_pretty_env_info

    from folovllm.entrypoints.cli import info

    info.print_facts(info.collect())
    print("", get_pretty_env_info(), "", "Packages:", *packages(), "", "Environment:", *variables(), sep="\n")
    return 0


def packages() -> list[str]:
    """All that FoloVLLM may use, as far as it is installed."""
    names = {re.split(r"[^\w.-]", text)[0] for text in requires("folovllm") or ()} - {"folovllm"}
    lines = []
    for name in sorted(names, key=str.lower):
        try:
            lines.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            continue
    return lines


def variables() -> list[str]:
    """Of the environment, those that change what runs. A secret is not shown."""
    found = sorted((name, value) for name, value in os.environ.items() if _VARIABLES.match(name))
    return [f"{name}={'(not shown)' if _SECRET.search(name) else value}" for name, value in found]
