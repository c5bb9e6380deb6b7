"""`folovllm serve`: the engine behind HTTP, in the shape of OpenAI's interface. vLLM: entrypoints/cli/serve.py"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from folovllm.config import EMBEDDED_MODEL, EngineConfig
from folovllm.engine.defaults import HUB, engine_options
from folovllm.entrypoints.cli.parser import add_engine_arguments, engine_kwargs
from folovllm.entrypoints.cli.recording import recording_options
from folovllm.entrypoints.cli.vllm_options import OneModel, add_vllm_arguments
from folovllm.entrypoints.commands import notes
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.reasoning import NAMES as REASONING_NAMES
from folovllm.serving.reasoning import check_name
from folovllm.serving.tool_parsers.formats import NAMES, get_tool_parser
from folovllm.utils.named_files import read_file

LOG_LEVELS = ["critical", "error", "warning", "info", "debug", "trace"]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve the model over HTTP, in the shape of OpenAI's interface",
        description="Serve a model over HTTP: /v1/chat/completions, /v1/completions, /docs, and a page to talk at /.",
    )
    text = "folder, hub id or embedded (default: embedded)"
    parser.add_argument("model", nargs="?", action=OneModel, default=argparse.SUPPRESS, metavar="MODEL", help=text)
    text = "the same as MODEL (default: embedded)"
    parser.add_argument("--model", action=OneModel, default=EMBEDDED_MODEL, metavar="MODEL", help=text)
    text = "options in YAML, by their long names; what is typed counts more (default: none)"
    parser.add_argument("--config", metavar="FILE", help=text)
    parser.add_argument("--served-model-name", metavar="NAME", help="what clients call the model (default: MODEL)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is open to other machines")
    parser.add_argument("--port", type=_whole(0, 65535), default=8000, metavar="N", help="0: one that is free")
    text = "one that clients must send; may be given again (default: FOLOVLLM_API_KEY, or none)"
    parser.add_argument("--api-key", dest="api_keys", action="append", default=[], metavar="KEY", help=text)
    text = "a file with a key in each line; unlike --api-key, it does not show in the list of processes (default: none)"
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help=text)
    text = "a name that clients may call this server by, besides localhost; may be given again (default: none)"
    parser.add_argument("--allowed-host", dest="allowed_hosts", action="append", default=[], metavar="NAME", help=text)
    text = """sites whose pages may call this server from a browser, as JSON: '["*"]' is any (default: none)"""
    parser.add_argument("--allowed-origins", type=_texts, default=[], metavar="JSON", help=text)
    for name in ("methods", "headers"):
        text = f"""{name} that these pages may use (default: '["*"]')"""
        parser.add_argument(f"--allowed-{name}", type=_texts, default=["*"], metavar="JSON", help=text)
    text = "let these pages send cookies and keys that the browser holds"
    parser.add_argument("--allow-credentials", action="store_true", help=text)
    parser.add_argument("--max-queue", type=_whole(0), default=1024, metavar="N", help="waiting requests; beyond: 429")
    text = "the most that a request's body may have; beyond: 413"
    parser.add_argument("--max-body-bytes", type=_whole(1), default=2 * 2**20, metavar="N", help=text)
    parser.add_argument(
        "--salt-by-key", action="store_true", help="each key finds only the prompts that were cached for it"
    )
    parser.add_argument(
        "--generation-config",
        choices=["auto", "vllm"],
        default="auto",
        help="sampling defaults: auto takes the checkpoint's generation_config.json, vllm none",
    )
    text = f"how the model writes calls of tools: {', '.join(NAMES)} (default: by its chat template)"
    parser.add_argument("--tool-call-parser", metavar="NAME", help=text)
    text = f"how the model marks its thoughts: {', '.join(REASONING_NAMES)} (default: by its chat template)"
    parser.add_argument("--reasoning-parser", metavar="NAME", help=text)
    text = "what holds anyway: a request's tools are for the model to call, unless tool_choice says otherwise"
    parser.add_argument("--enable-auto-tool-choice", action="store_true", help=text)
    text = "a Jinja template, instead of the tokenizer's; the template itself may be given, too (default: none)"
    parser.add_argument("--chat-template", metavar="FILE", help=text)
    text = "how names at /metrics begin; with vllm: a dashboard for vLLM fills (default: folovllm:)"
    parser.add_argument("--metrics-prefix", default="folovllm:", metavar="TEXT", help=text)
    text = "fields that this server does not know: warn leaves them out and says so in the log, refuse answers 400"
    parser.add_argument("--unknown-fields", choices=["refuse", "warn"], default="warn", help=text)
    _add_http_arguments(parser)
    _add_replica_arguments(parser)
    text = "take chat templates from requests; a template is a program, though one without access to files"
    parser.add_argument("--trust-request-chat-template", dest="trust_chat_template", action="store_true", help=text)
    add_engine_arguments(parser)
    add_vllm_arguments(parser)
    parser.set_defaults(run=run)


def _add_http_arguments(parser: argparse.ArgumentParser) -> None:
    text = "path that a proxy in front puts before this server's own (default: none)"
    parser.add_argument("--root-path", metavar="PATH", help=text)
    text = "certificate in PEM: the server then speaks HTTPS (default: none)"
    parser.add_argument("--ssl-certfile", metavar="FILE", help=text)
    text = "key of the certificate, where it is not in the same file (default: none)"
    parser.add_argument("--ssl-keyfile", metavar="FILE", help=text)
    text = "what uvicorn logs; at info a line for each request"
    parser.add_argument("--uvicorn-log-level", choices=LOG_LEVELS, default="warning", help=text)


def _add_replica_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("replicas", "several engines, on Ray (pip install -e '.[ray]' in the clone)")
    whole = _whole(1)
    group.add_argument("--replicas", type=whole, metavar="N", help="each in a process (default: one, without Ray)")
    text = ", where the load decides (default: as many as --replicas)"
    group.add_argument("--min-replicas", type=whole, metavar="N", help=f"fewest{text}")
    group.add_argument("--max-replicas", type=whole, metavar="N", help=f"most{text}")
    text = "unfinished requests that each should have, by which the load decides (default: 32)"
    group.add_argument("--target-ongoing-requests", type=whole, metavar="N", help=text)
    text = "which replica gets a request: prefix-affinity, least-loaded or round-robin (default: prefix-affinity)"
    group.add_argument("--router", metavar="NAME", help=text)
    text = "requests that a replica may have above the least busy one, and still be chosen for its cache (default: 8)"
    group.add_argument("--router-margin", type=float, metavar="N", help=text)
    group.add_argument("--ray-address", metavar="ADDRESS", help="of a Ray cluster (default: one on this machine)")
    group.add_argument("--replica-cpus", type=float, metavar="N", help="CPUs that each takes (default: 1)")
    group.add_argument("--replica-gpus", type=float, metavar="N", help="GPUs that each takes (default: 0)")


def _replica_options(args: argparse.Namespace) -> Any:
    """None where one engine is meant."""
    spelled = {"ray_address": "address", "replica_cpus": "cpus", "replica_gpus": "gpus"}
    names = ["replicas", "min_replicas", "max_replicas", "target_ongoing_requests", "router", "router_margin", *spelled]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if not given:
        return None
    if not given.keys() & {"replicas", "min_replicas", "max_replicas"}:
        name = next(iter(given))
        raise ValueError(f"{name} must be given with --replicas, got {given[name]!r} without it")
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"`serve --replicas` needs the package {error.name}: pip install -e '.[serve,ray]' in the clone"
        ) from error
    from folovllm.serving.replicas.cluster import ClusterOptions
    from folovllm.serving.replicas.launch import ReplicaOptions

    cluster = ClusterOptions(**{spelled[name]: given.pop(name) for name in spelled if name in given})
    if "router_margin" in given:
        given["margin"] = given.pop("router_margin")
    return ReplicaOptions(**given, cluster=cluster)


def run(args: argparse.Namespace) -> int:
    engine = engine_kwargs(args)
    fields_of_config = engine_options({name: value for name, value in engine.items() if name not in HUB})
    EngineConfig.from_kwargs(model=args.model, **fields_of_config)  # refused before anything heavy is imported
    args.chat_template = _template(args.chat_template)
    _check_certificate(args.ssl_certfile, args.ssl_keyfile)
    args.api_keys = _api_keys(args.api_keys, args.api_key_file)
    if args.allow_credentials and "*" in args.allowed_origins:
        raise ValueError(
            "--allow-credentials must be given with origins by their names, got '*': any site could use what a "
            "browser holds for this server"
        )
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", args.metrics_prefix):
        raise ValueError(f"--metrics-prefix must be the beginning of a name in Prometheus, got {args.metrics_prefix!r}")
    if args.tool_call_parser is not None:
        get_tool_parser(args.tool_call_parser)
    if args.reasoning_parser is not None:
        check_name(args.reasoning_parser)
    require_packages()
    recording = recording_options(args, texts=False)
    replicas = _replica_options(args)
    if replicas is not None:
        if args.trace is not None or args.nvtx:
            raise ValueError("--trace and --nvtx must not be given with --replicas: they are of one engine")
        from folovllm.serving.replicas.launch import serve_replicas

        return serve_replicas(_options(args), engine, replicas, notes)
    with closing(EngineProcess(args.model, **engine, **recording, observers=args.observers)) as process:
        from folovllm.serving.openai.launch import serve  # while the process loads the model

        return serve(_options(args), process, notes)


def _api_keys(given: list[str], file: Path | None) -> list[str]:
    keys = [*given, *(file.read_text("utf-8", "replace").split() if file is not None else ())]
    if file is not None and len(keys) == len(given):
        raise ValueError(f"--api-key-file must have at least one key, got {file}, which is empty")
    keys = keys or [key for key in [os.environ.get("FOLOVLLM_API_KEY")] if key]
    if not all(re.fullmatch(r"[!-~]+", key) for key in keys):
        raise ValueError("--api-key must be of visible ASCII characters, as a header holds it")
    return keys


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


def _template(given: str | None) -> str | None:
    """vLLM: entrypoints/chat_utils.py (load_chat_template)"""
    if given is None or re.search(r"[{}\n]", given):
        return given
    try:
        return read_file("--chat-template", given).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--chat-template must be a file of UTF-8 text, got {given!r}: {error}") from error


def _options(args: argparse.Namespace) -> Any:
    from folovllm.serving.openai.options import ServerOptions

    given = {field.name: getattr(args, field.name) for field in fields(ServerOptions)}
    return ServerOptions(**given)


def require_packages() -> None:
    """Raises ValueError: the extra `serve` is not installed."""
    try:
        import fastapi_offline  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(f"`serve` needs the package {error.name}: pip install -e '.[serve]' in the clone") from error


def _texts(text: str) -> list[str]:
    try:
        texts = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise argparse.ArgumentTypeError(f"""must be a list of texts in JSON, such as '["*"]', got {text!r}""")
    return texts


def _whole(least: int, most: int | None = None) -> Any:
    def number(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?\d+", text) else least - 1
        if value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"in [{least}, {most}]"
            raise argparse.ArgumentTypeError(f"must be a whole number {limit}, got {text!r}")
        return value

    return number
