"""The ASGI application: middleware, routes, and the page. An EngineClient goes in.

    request ─▶ middleware ─▶ bodies ─▶ route ─▶ ServingEngine ─▶ MPClient, or ReplicatedLLM

vLLM: entrypoints/openai/api_server.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi_offline import FastAPIOffline

from folovllm import __version__
from folovllm.engine.engine_client import EngineClient
from folovllm.serving.openai.adapters import LoadAdapterRequest, UnloadAdapterRequest, may_change
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.bodies import Bodies, BodyRoute
from folovllm.serving.openai.errors import APIError, add_error_handlers
from folovllm.serving.openai.gate import engine_dead, shutting_down
from folovllm.serving.openai.live import snapshots
from folovllm.serving.openai.messages import MessagesServing
from folovllm.serving.openai.messages_protocol import CountTokensRequest, MessagesRequest
from folovllm.serving.openai.middleware import ASSETS, AuthenticationMiddleware, CallerMiddleware, bearer
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.openai.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from folovllm.serving.openai.responses import ResponsesServing
from folovllm.serving.openai.responses_protocol import ResponsesRequest
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_completion import CompletionServing
from folovllm.serving.openai.serving_engine import ServingEngine
from folovllm.serving.openai.serving_pooling import add_pooling
from folovllm.serving.openai.streams import EventStream, unless_gone

JSON = "application/json"
STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
    for status, text in {
        400: "A field is wrong; the error names it.",
        401: "The key is missing or wrong.",
        404: "No such model.",
        413: "The body is too large.",
        429: "The queue is full: try again later.",
        500: "The engine failed.",
        503: "The server is shutting down, or its engine does not answer or has died.",
    }.items()
}


def make_app(llm: EngineClient, options: ServerOptions) -> FastAPI:
    """The server around an engine, which is shut down with it. Tests call it by ASGI, without a socket."""
    serving = ServingEngine(llm, options)
    bodies = Bodies(options.max_body_bytes, serving.gate, warns=options.unknown_fields == "warn")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # kept: nobody waits while it is made
        yield
        bodies.close()
        serving.close()
        await llm.shutdown()

    app = FastAPIOffline(title="FoloVLLM", version=__version__, lifespan=lifespan, responses=_ERRORS)
    app.root_path = options.root_path or ""
    app.state.serving, app.state.bodies, app.state.options = serving, bodies, options
    app.router.route_class = BodyRoute
    _add_completions(app, serving)
    add_pooling(app, serving)
    _add_tokens(app, serving)
    _add_state(app, serving)
    _add_operations(app, serving)
    if may_change():
        _add_adapters(app, serving)
    _add_page(app)
    add_error_handlers(app)
    app.add_middleware(AuthenticationMiddleware, keys=options.api_keys, hosts=options.hosts)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            allow_credentials=options.allow_credentials,
        )
    app.add_middleware(CallerMiddleware, logs_access=options.logs_access)  # the last is the first that is asked
    return app


def _add_completions(app: FastAPI, serving: ServingEngine) -> None:
    chat, completion = ChatServing(serving), CompletionServing(serving)
    responses, messages = ResponsesServing(chat), MessagesServing(chat)

    async def answered(served: Any, body: Any, request: Request, count: int = 1) -> Response:
        with serving.gate.admit(count):
            work = await unless_gone(request.receive, served.work(body, bearer(request.scope)))
        if body.stream:
            return EventStream(served.chunks(body, work))
        return Response(await unless_gone(request.receive, served.whole(body, work)), media_type=JSON)

    @app.post("/v1/chat/completions", response_model=None, tags=["answers"])
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        return await answered(chat, body, request)

    @app.post("/v1/completions", response_model=None, tags=["answers"])
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        return await answered(completion, body, request, body.num_prompts)

    @app.post("/v1/responses", response_model=None, tags=["answers"])
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        return await answered(responses, body, request)

    @app.get("/v1/responses/{name}", response_model=None, tags=["answers"])
    async def stored_response(name: str, request: Request, stream: bool = False) -> Response:
        if stream:
            raise APIError(400, "stream must be false: what is stored comes in one piece", param="stream")
        return Response(responses.store.get(bearer(request.scope), name, "response_id").answer, media_type=JSON)

    @app.delete("/v1/responses/{name}", tags=["answers"])
    async def delete_response(name: str, request: Request) -> dict[str, Any]:
        responses.store.delete(bearer(request.scope), name)
        return {"id": name, "object": "response", "deleted": True}

    @app.post("/v1/messages", response_model=None, tags=["answers"])
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        return await answered(messages, body, request)

    @app.post("/v1/messages/count_tokens", response_model=None, tags=["answers"])
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        return Response(await unless_gone(request.receive, messages.count_tokens(body)), media_type=JSON)


def _add_tokens(app: FastAPI, serving: ServingEngine) -> None:
    def tokens_of(body: TokenizeRequest, check: Check) -> list[int]:
        if (body.prompt is None) == (body.messages is None):
            raise ValueError("prompt must be given, or messages, and not both")
        if body.messages is not None:
            return list(serving.conversation(body, check, body.tools)["prompt_token_ids"])
        for name in ("chat_template", "chat_template_kwargs", "tools"):
            if getattr(body, name) is not None:
                raise ValueError(f"{name} must not be given without messages")
        return serving.tokens_of(body.prompt or "", check, add_special_tokens=body.add_special_tokens is not False)

    def tokenized(body: TokenizeRequest, check: Check) -> Response:
        tokens = tokens_of(body, check)
        answer = {"count": len(tokens), "max_model_len": serving.llm.engine.max_model_len, "tokens": tokens}
        if body.return_token_strs and serving.tokenizer is not None:
            answer["token_strs"] = serving.tokenizer.convert_ids_to_tokens(tokens)
        return JSONResponse(answer)

    @app.post("/tokenize", response_model=None, tags=["tokens"])
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        serving.check_model(body.model)
        return await unless_gone(request.receive, serving.prepare(lambda check: tokenized(body, check)))

    def text_of(tokens: list[int]) -> str:
        if serving.tokenizer is None:
            raise ValueError("tokens need a tokenizer, but skip_tokenizer_init leaves none")
        size = serving.llm.engine.input_processor.vocab_size
        for place, token_id in enumerate(tokens):
            if not 0 <= token_id < size:
                raise ValueError(f"tokens[{place}] must be in [0, {size}), the model's vocabulary, got {token_id}")
        return str(serving.tokenizer.decode(tokens))

    @app.post("/detokenize", tags=["tokens"])
    async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
        serving.check_model(body.model)
        return {"prompt": await unless_gone(request.receive, serving.prepare(lambda _: text_of(body.tokens)))}


def _add_state(app: FastAPI, serving: ServingEngine) -> None:
    @app.get("/v1/models", tags=["the server"])
    async def models() -> dict[str, Any]:
        base = [_model(serving, name) for name in serving.options.names]
        return {"object": "list", "data": base + serving.adapters.cards(base[0])}

    @app.get("/v1/models/{name:path}", tags=["the server"])
    async def model(name: str) -> dict[str, Any]:
        serving.check_model(name)
        cards = serving.adapters.cards(_model(serving, serving.model_name))
        return next((card for card in cards if card["id"] == name), _model(serving, name))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["the server"])
    @app.api_route("/ping", methods=["GET", "HEAD"], include_in_schema=False)  # where a platform asks by this name
    async def health() -> Response:
        if serving.gate.draining:
            raise shutting_down()
        if serving.llm.is_closed:
            raise engine_dead()
        replicas = serving.llm.replicas()
        return JSONResponse({"replicas": replicas}) if replicas else Response()

    @app.get("/load", tags=["the server"])
    async def load() -> dict[str, int]:
        return {"server_load": serving.gate.num_inside}

    @app.get("/version", tags=["the server"])
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics", response_model=None, tags=["the server"])
    async def metrics() -> Response:
        return Response(await serving.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live", response_model=None, include_in_schema=False)
    async def live() -> Response:
        return EventStream(snapshots(serving))


def _add_operations(app: FastAPI, serving: ServingEngine) -> None:
    """vLLM: entrypoints/serve/dev/"""

    @app.get("/server_info", tags=["the server"])
    async def server_info() -> dict[str, Any]:
        config = asdict(serving.llm.engine.config)
        return {"version": __version__, "model": serving.model_name, **config}

    @app.get("/tokenizer_info", tags=["tokens"])
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

    @app.post("/reset_prefix_cache", tags=["the server"])
    async def reset_prefix_cache() -> dict[str, bool]:
        await serving.llm.reset_prefix_caches()
        return {"success": True}


def _add_adapters(app: FastAPI, serving: ServingEngine) -> None:
    """vLLM: entrypoints/serve/lora/api_router.py"""

    @app.post("/v1/load_lora_adapter", response_model=None, tags=["the server"])
    async def load_lora_adapter(body: LoadAdapterRequest) -> Response:
        asked = body.lora_name, body.lora_path
        await serving.prepare(lambda _: serving.adapters.load(*asked, in_place=body.load_inplace))
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @app.post("/v1/unload_lora_adapter", response_model=None, tags=["the server"])
    async def unload_lora_adapter(body: UnloadAdapterRequest) -> Response:
        serving.adapters.unload(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", headers=_PAGE_HEADERS)

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise APIError(404, f"there is no {name!r} here")
        return FileResponse(STATIC / name)


def _model(serving: ServingEngine, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "folovllm",
        "root": serving.llm.engine.model_config.model,
        "parent": None,
        "max_model_len": serving.llm.engine.max_model_len,
    }
