"""The start of a server with replicas.

vLLM: entrypoints/cli/serve.py (run_multi_api_server)
"""

from __future__ import annotations

import asyncio
from typing import Any

from rich.console import Console

from folovllm.entrypoints.commands import waiting
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.launch import listen, run_app, say_where
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.replicas.cluster import RayFleet
from folovllm.serving.replicas.options import ReplicaOptions


def make_replicas(model: str, engine_options: dict[str, Any], options: ReplicaOptions) -> ReplicatedLLM:
    """Start them, and wait until all have loaded the model. Raises: as RayFleet."""
    fleet = RayFleet(model, engine_options, options)
    try:
        facts = asyncio.run(fleet.call(fleet.names[-1], "facts"))
        return ReplicatedLLM(fleet, options.make_router(), facts, options.make_prefill_router())
    except BaseException:
        fleet.close()
        raise


def serve_replicas(
    options: ServerOptions, engine_options: dict[str, Any], replica_options: ReplicaOptions, notes: Console
) -> int:
    """As openai.launch.serve(), with the engines elsewhere. Raises: also as RayFleet."""
    with listen(options.host, options.port, options.uds) as listener:
        with waiting(f"starting {replica_options.replicas} replicas of {options.model} …", notes):
            llm = make_replicas(options.model, engine_options, replica_options)
        try:
            facts = llm.engine.facts
            said = [
                f"{replica_options.replicas} replicas on {replica_options.ray_address or 'this machine'}",
                *([f"{count} of them for prompts"] if (count := replica_options.prefill_replicas) else []),
                f"{facts.device}, {facts.dtype}",
                f"router {replica_options.router}",
                f"{facts.config.cache_config.num_kv_blocks:,} KV blocks each",
                f"up to {llm.engine.max_model_len:,} tokens a sequence",
            ]
            say_where(notes, options, listener, said)
            return run_app(make_app(llm, options), listener)
        finally:
            asyncio.run(llm.shutdown())
