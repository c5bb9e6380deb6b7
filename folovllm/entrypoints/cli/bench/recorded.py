"""`folovllm bench KIND --trace FILE --watch`: for the kinds that make an engine in this process.

vLLM: none
"""

from __future__ import annotations

import argparse

from folovllm.entrypoints.cli.recording import add_recording

WITH_ENGINE = ("decode", "invariance", "latency", "step", "throughput")


def extend(commands: dict[str, argparse.ArgumentParser]) -> None:
    for name in WITH_ENGINE:
        add_recording(commands[name])
