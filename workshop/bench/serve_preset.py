"""`bench serve-load` with --preset as well: a workload by its name, at the preset's own rate. vLLM: none"""

from __future__ import annotations

import argparse

from folovllm.bench import serve_load
from folovllm.bench.arrivals import Arrivals, arrivals_of
from folovllm.bench.report import Report
from folovllm.bench.serve_load import check_args
from workshop.bench.presets import add_preset, preset_of, work_of

__all__ = ["add_arguments", "check_args", "from_args"]


def add_arguments(command: argparse.ArgumentParser) -> None:
    serve_load.add_arguments(command)
    add_preset(command)


def from_args(args: argparse.Namespace) -> Report:
    if args.preset is None:
        return serve_load.from_args(args)
    if args.dataset is not None:
        raise ValueError("dataset must not be given with preset: each brings its own prompts")
    preset = preset_of(args.preset, args)
    usual = [Arrivals(preset.request_rate, preset.burstiness)]
    return serve_load.measured(args, work_of(preset), arrivals_of(args) or usual)
