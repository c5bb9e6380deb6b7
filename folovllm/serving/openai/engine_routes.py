"""What those who run a server ask of it: how it is set up, what its tokenizer is, and to forget what it has computed.

vLLM: entrypoints/serve/dev/cache/api_router.py, entrypoints/serve/dev/server_info/api_router.py
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import FastAPI

from folovllm import __version__
from folovllm.serving.openai.errors import APIError
from folovllm.serving.openai.serving_engine import ServingEngine


def add_engine_routes(app: FastAPI, serving: ServingEngine) -> None:
    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        config = dataclasses.asdict(serving.llm.engine.config)
        return {"version": __version__, "model": serving.model_name, **config}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        tokenizer = serving.tokenizer
        if tokenizer is None:
            raise APIError(404, "there is no tokenizer: skip_tokenizer_init leaves none")
        return {
            "tokenizer_class": type(tokenizer).__name__,
            "vocab_size": len(tokenizer),
            "model_max_length": serving.llm.engine.max_model_len,
            "special_tokens": tokenizer.special_tokens_map,
            "chat_template": tokenizer.chat_template,
            "tool_call_parser": None if serving.tool_parser is None else serving.tool_parser.__name__,
        }

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, Any]:
        await serving.llm.reset_prefix_caches()
        return {}
