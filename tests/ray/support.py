"""What the replicas are doing, asked from outside the server's event loop, and one that a test can hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from folovllm.engine.messages import EngineCoreOutputs
from folovllm.serving.replicas.replica import EngineReplica
from tests import pace
from tests.serve.support import step_unless_all_have_begun


class HeldReplica(EngineReplica):
    """While the file `hold` is there, no request gets further than its first token; under --pace slow its engine is
    late. Both are told by the engine's options, which reach a process that Ray starts again, too."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        engine = dict(options)
        hold: Path = engine.pop("hold")
        if engine.pop("is_slow"):
            pace.begin("slow", pytest.MonkeyPatch())
        super().__init__(name, model, engine)
        step = self.engine.core.step

        def held() -> EngineCoreOutputs:
            return step_unless_all_have_begun(self.engine, step) if hold.exists() else step()

        self.engine.core.step = held  # type: ignore[method-assign]


def snapshots(server: Any) -> list[Any]:
    async def ask() -> list[Any]:
        return [await server.llm.fleet.call(name, "snapshot") for name in server.llm.fleet.names]

    return asyncio.run(ask())
