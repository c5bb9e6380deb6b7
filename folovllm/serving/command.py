"""`folovllm serve`: the engine behind HTTP, in the shape of OpenAI's interface. vLLM: entrypoints/cli/serve.py"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from folovllm.config import EngineConfig
from folovllm.engine.builder.defaults import DEFAULTS, HUB, engine_options
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import (
    add_engine_arguments,
    add_fields,
    engine_kwargs,
    how_to_install,
    needing,
    one_line,
)
from folovllm.entrypoints.cli.recording import recording_options
from folovllm.entrypoints.cli.vllm_options import OneModel, add_vllm_arguments
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.logs import logging_as
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.utils.checks import wrong
from folovllm.utils.logging import init_logger
from folovllm.utils.named_files import read_file
from folovllm.vllm_names import arguments

LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")


def add_parser(choices: Any) -> None:
    parser = choices.add_parser(
        "serve",
        in_pages=True,
        help="serve the model over HTTP, in the shape of OpenAI's interface",
        description="Serve a model over HTTP: /v1/chat/completions, /v1/completions, /docs, and a page to talk at /. "
        f"It needs packages: {how_to_install('serve')} ([serve,otel] for spans, [serve,ray] for replicas).",
    )
    add_model(parser)
    text = "a file with a key in each line; unlike --api-key, it does not show in the list of processes (default: none)"
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help=text)
    text = "level of this program's own log (default: FOLOVLLM_LOG_LEVEL, or WARNING)"
    parser.add_argument("--log-level", type=str.upper, choices=LEVELS, help=text)
    add_fields(parser, ServerOptions, how=HOW, title="the server")
    add_fields(parser, ReplicaOptions, title="several engines, on Ray")
    add_engine_arguments(parser)
    add_vllm_arguments(parser, arguments())
    parser.set_defaults(run=run)


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, and --config FILE."""
    text = "folder, .gguf file, hub id or embedded (default: embedded)"
    model: dict[str, Any] = {"action": OneModel, "default": argparse.SUPPRESS, "metavar": "MODEL"}
    parser.add_argument("model", nargs="?", help=text, **model)
    parser.add_argument("--model", help="the same (default: embedded)", **model)
    text = "options in YAML, by their long names; what is typed counts more (default: none)"
    parser.add_argument("--config", metavar="FILE", help=text)


def _replica_options(args: argparse.Namespace) -> ReplicaOptions | None:
    """None where one engine is meant."""
    given = commands.given(args, ReplicaOptions)
    if not given:
        return None
    if "replicas" not in given:
        name = next(iter(given))
        raise ValueError(f"{name} must be given with --replicas, got {given[name]!r} without it")
    with needing("serve,ray", "`serve --replicas`"):
        import ray.serve  # noqa: F401
    return ReplicaOptions(**given)


def run(args: argparse.Namespace) -> int:
    if args.log_level is not None:
        os.environ["FOLOVLLM_LOG_LEVEL"] = args.log_level  # the engine's process has it, too
        init_logger("folovllm").setLevel(args.log_level)
    options = _server_options(args)
    with logging_as(options.log_format) as notes:
        try:
            return _serve(args, options, notes)
        except (ValueError, NotImplementedError, OSError) as error:
            if options.log_format == "text":
                raise
            init_logger("folovllm.serve").error("%s", one_line(error))
            return 2


def _serve(args: argparse.Namespace, options: ServerOptions, notes: Console) -> int:
    engine = engine_options(engine_kwargs(args))
    check_config(options.model, engine)
    if options.lora_modules and not engine.get("enable_lora"):
        raise ValueError(f"--lora-modules must be given with --enable-lora, got {options.lora_modules} without it")
    require_packages(options)
    recording = recording_options(args, texts=False)
    replicas = _replica_options(args)
    if replicas is not None:
        if args.trace is not None or args.nvtx:
            raise ValueError("--trace and --nvtx must not be given with --replicas: they are of one engine")
        if replicas.prefill_replicas and not engine.get("kv_offloading_path"):
            way_out = "give the folder through which the others get the blocks"
            raise wrong("prefill_replicas", "be given with --kv-offloading-path", replicas.prefill_replicas, way_out)
        from folovllm.serving.replicas.launch import serve_replicas

        return serve_replicas(options, engine, replicas, notes)
    here = {**recording, "observers": args.observers, "log_format": options.log_format}
    with closing(EngineProcess(options.model, **engine, **here)) as process:
        from folovllm.serving.openai.launch import serve  # while the process loads the model

        return serve(options, process, notes)


def check_config(model: str, engine: dict[str, Any]) -> None:
    """What is wrong with it is said before anything heavy is imported."""
    options = {name: value for name, value in engine.items() if name not in HUB}
    EngineConfig.from_kwargs(model=model, **{**DEFAULTS, **options})


def _server_options(args: argparse.Namespace) -> ServerOptions:
    given = commands.given(args, ServerOptions)
    given["chat_template"] = read_template(given.get("chat_template"))
    given["api_keys"] = _api_keys(given.get("api_keys", []), args.api_key_file)
    options = ServerOptions(**given)
    _check_certificate(options.ssl_certfile, options.ssl_keyfile)
    if options.log_config_file is not None:
        read_file("--log-config-file", options.log_config_file)
    return options


def _api_keys(given: list[str], file: Path | None) -> list[str]:
    keys = [*given, *(file.read_text("utf-8", "replace").split() if file is not None else ())]
    if file is not None and len(keys) == len(given):
        raise ValueError(f"--api-key-file must have at least one key, got {file}, which is empty")
    return keys or [key for key in [os.environ.get("FOLOVLLM_API_KEY")] if key]


def _check_certificate(certificate: str | None, key: str | None) -> None:
    """Raises ValueError: HTTPS cannot be spoken with them."""
    if certificate is None:
        if key is not None:
            raise ValueError(f"--ssl-keyfile must be given with --ssl-certfile, got {key!r} without it")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # OSError: an SSLError, too
        given = f"{certificate!r}" + (f" and {key!r}" if key is not None else "")
        must = "be a certificate and its key in PEM"
        raise ValueError(f"--ssl-certfile and --ssl-keyfile must {must}, got {given}: {error}") from None


def read_template(given: str | None) -> str | None:
    """vLLM: entrypoints/chat_utils.py (load_chat_template)"""
    if given is None or re.search(r"[{}\n]", given):
        return given
    try:
        return read_file("--chat-template", given).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--chat-template must be a file of UTF-8 text, got {given!r}: {error}") from error


def require_packages(options: ServerOptions) -> None:
    """Raises ValueError: the extra `serve` is not installed, or `otel` where `options` need it."""
    with needing("serve", "`serve`"):
        import fastapi_offline  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    if options.otlp_traces_endpoint is not None:
        with needing("serve,otel", "--otlp-traces-endpoint"):
            from folovllm.serving.openai import spans
        spans.check_protocol()


def _texts(text: str) -> list[str]:
    try:
        texts = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise argparse.ArgumentTypeError(f"""must be a list of texts in JSON, such as '["*"]', got {text!r}""")
    return texts


# What a field's type does not say.
HOW: dict[str, dict[str, Any]] = {
    "served_model_name": {"action": None, "nargs": "+", "metavar": "NAME"},
    "lora_modules": {"action": "extend", "nargs": "+", "metavar": "NAME=FOLDER"},
    "api_keys": {"options": ["--api-key"], "action": "extend", "nargs": "+", "metavar": "KEY"},
    "allowed_hosts": {"options": ["--allowed-host"], "metavar": "NAME"},
    **{
        f"allowed_{what}": {"type": _texts, "action": None, "metavar": "JSON"}
        for what in ("origins", "methods", "headers")
    },
    "trust_chat_template": {"options": ["--trust-request-chat-template"]},
}
