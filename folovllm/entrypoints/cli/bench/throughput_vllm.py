"""`folovllm bench throughput --peer vllm --peer-python PATH`: where vLLM is installed, in an environment of its own.

vLLM: none
"""

from __future__ import annotations

import argparse


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    text = "for the peers vllm and vllm-compiled: the Python that has vLLM, in an environment of its own"
    commands["throughput"].add_argument("--peer-python", metavar="PATH", help=text)
