"""`folovllm collect-env`: what a report of a fault needs to say of a machine. vLLM: entrypoints/cli/collect_env.py"""

from __future__ import annotations

import argparse
import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distributions, requires
from typing import Any

_VARIABLES = re.compile(r"FOLOVLLM|OMP_|KMP_|MKL_|GOMP_|TORCH|TRITON|CUDA|NVIDIA|NCCL|HF_|RAY_|LD_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


def add_parser(choices: Any) -> None:
    text = "print what a report of a fault needs: copy all of it"
    choices.add_parser("collect-env", help=text, description=text.capitalize()).set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    from torch.utils.collect_env import get_pretty_env_info

    from folovllm.entrypoints.cli import info

    info.print_facts(info.collect())
    needed = list[str]()
    with suppress(PackageNotFoundError):  # it runs from a clone, and is not installed
        needed = requires("folovllm") or []
    used = {re.split(r"[^\w.-]", text)[0].lower() for text in needed}
    there = {each.name.lower(): each.version for each in distributions()}
    packages = [f"{name}=={there[name]}" for name in sorted(used & there.keys())]
    found = sorted((name, value) for name, value in os.environ.items() if _VARIABLES.match(name))
    variables = [f"{name}={'(not shown)' if _SECRET.search(name) else value}" for name, value in found]
    print("", get_pretty_env_info(), "", "Packages:", *packages, "", "Environment:", *variables, sep="\n")
    return 0
