"""EngineArgs: what LLM() takes, kept in an object until an engine is made of it.

    EngineArgs(model="Qwen/Qwen3-0.6B", max_num_seqs=64).create_engine_config()      LLM(**dataclasses.asdict(args))

A field is any of the configuration's, or vLLM's name of one; None is "not given".

vLLM: engine/arg_utils.py
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields, make_dataclass
from typing import TYPE_CHECKING, Any

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.builder.defaults import HUB, LAYERS, SPELLINGS, config_for_llm
from folovllm.entrypoints.cli.parser import add_engine_arguments
from folovllm.entrypoints.cli.vllm_options import add_vllm_arguments
from folovllm.vllm_names import names


class _Args:
    if TYPE_CHECKING:  # its fields are those of other classes

        def __init__(self, **given: Any) -> None: ...

    def create_engine_config(self) -> EngineConfig:
        """Raises ValueError: a value out of its range, or one of an option that the engine does not have."""
        given = {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]
        return config_for_llm(given.pop("model", None), **given)

    def create_model_config(self) -> ModelConfig:
        return self.create_engine_config().model_config

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        add_engine_arguments(parser)
        add_vllm_arguments(parser, names()["engine"])
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Any:
        own = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in vars(args).items() if name in own})


_NAMES = dict.fromkeys(
    [*(field.name for layer in LAYERS for field in fields(layer)), *SPELLINGS, *HUB, *names()["engine"]]
)
EngineArgs = make_dataclass("EngineArgs", [(name, Any, None) for name in _NAMES], bases=(_Args,))
AsyncEngineArgs = make_dataclass("AsyncEngineArgs", [], bases=(EngineArgs,))
for _made in (EngineArgs, AsyncEngineArgs):
    _made.__module__ = __name__
