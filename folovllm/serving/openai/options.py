"""ServerOptions: what the server is configured with; the engine's options are beside them. Each field is an option of
`folovllm serve`, and its line below is what the help says of it.

vLLM: entrypoints/launchers/cli_args.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from folovllm.config import EMBEDDED_MODEL, check_types
from folovllm.entrypoints.chat_template import check_template
from folovllm.serving.logs import LogFormat
from folovllm.utils.checks import wrong

LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]


@dataclass
class ServerOptions:
    """Args:
    served_model_name: what clients call the model; of several names, answers have the first (default: MODEL)
    lora_modules: an adapter, NAME=FOLDER, that requests choose by its name as their model; several may be given
    host: address to listen on; 0.0.0.0 is open to other machines
    port: 0: one that is free
    uds: path of a Unix socket to listen on, instead of host and port (default: none)
    api_keys: one that clients must send; several may be given (default: FOLOVLLM_API_KEY, or none)
    allowed_hosts: a name that clients may call this server by, besides localhost; may be given again (default: none)
    allowed_origins: sites whose pages may call this server from a browser, as JSON: '["*"]' is any (default: none)
    allowed_methods: methods that these pages may use (default: '["*"]')
    allowed_headers: headers that these pages may use (default: '["*"]')
    allow_credentials: let these pages send cookies and keys that the browser holds
    max_queue: waiting requests; beyond: 429
    max_body_bytes: of a request; beyond: 413
    salt_by_key: each key finds only the prompts that were cached for it
    generation_config: sampling defaults; auto: the checkpoint's generation_config.json; vllm: none; or a folder
    override_generation_config: sampling defaults that count more, as JSON: '{"temperature": 0.5}' (default: none)
    tool_call_parser: how the model writes calls of tools (default: by its chat template)
    reasoning_parser: how the model marks its thoughts (default: by its chat template)
    chat_template: a Jinja template, instead of the tokenizer's; it may be typed itself, too (default: none)
    default_chat_template_kwargs: variables of the template for requests that do not give them, as JSON (default: none)
    trust_chat_template: take chat templates from requests; a template is a program, though one without access to files
    response_role: the role of answers
    return_tokens_as_token_ids: name tokens by their ids in log-probabilities
    enable_force_include_usage: count the tokens at the end of every stream
    unknown_fields: fields that this server does not know: warn leaves them out and says so, refuse answers 400
    root_path: path that a proxy in front puts before this server's own (default: none)
    ssl_certfile: certificate in PEM: the server then speaks HTTPS (default: none)
    ssl_keyfile: key of the certificate, where it is not in the same file (default: none)
    log_format: an entry of the log as a line of text or of JSON; replicas write theirs as Ray does
    enable_log_requests: log each request when it has ended: its id, tokens, times, and why it ended
    max_log_len: characters of its prompt and of its answers that this line has (default: none of them)
    otlp_traces_endpoint: collector of OpenTelemetry that gets a span of each request; by the extra otel (default: none)
    uvicorn_log_level: what uvicorn logs; at info a line for each request
    disable_uvicorn_access_log: no line for each request, whatever that level
    log_config_file: Python's logging configuration, in JSON or YAML, for uvicorn (default: as --log-format says)
    """

    model: str = EMBEDDED_MODEL
    served_model_name: str | Sequence[str] | None = None
    lora_modules: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()
    allowed_methods: Sequence[str] = ("*",)
    allowed_headers: Sequence[str] = ("*",)
    allow_credentials: bool = False
    max_queue: int = 1024
    max_body_bytes: int = 2 * 2**20
    salt_by_key: bool = False
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    tool_call_parser: Literal["qwen3_xml", "hermes", "mistral", "llama3_json", "qwen3_coder"] | None = None
    reasoning_parser: Literal["qwen3", "deepseek_r1"] | None = None
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] | None = None
    trust_chat_template: bool = False
    response_role: str = "assistant"
    return_tokens_as_token_ids: bool = False
    enable_force_include_usage: bool = False
    unknown_fields: Literal["refuse", "warn"] = "warn"
    root_path: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    log_format: LogFormat = "text"
    enable_log_requests: bool = False
    max_log_len: int | None = None
    otlp_traces_endpoint: str | None = None
    uvicorn_log_level: LogLevel = "warning"
    disable_uvicorn_access_log: bool = False
    log_config_file: str | None = None

    def __post_init__(self) -> None:
        check_types(self, port=0, max_queue=0, max_log_len=0)
        if self.port > 65535:
            raise wrong("port", "be in [0, 65535]", self.port)
        if not all(re.fullmatch(r"[!-~]+", key) for key in self.api_keys):
            raise ValueError("--api-key must be of visible ASCII characters, as a header holds it")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ValueError(
                "--allow-credentials must be given with origins by their names, got '*': any site could use what a "
                "browser holds for this server"
            )
        if self.max_log_len is not None and not self.enable_log_requests:
            raise ValueError(f"max_log_len must be given with enable_log_requests, got {self.max_log_len} without it")
        names = [name_and_path(module)[0] for module in self.lora_modules]
        if len(set(names)) < len(names):
            raise wrong("lora_modules", "have names that differ", list(self.lora_modules))
        if self.chat_template is not None:
            check_template(self.chat_template)

    @property
    def logs_access(self) -> bool:
        """Whether each request has a line of its own, as uvicorn's options say."""
        return self.uvicorn_log_level in ("info", "debug", "trace") and not self.disable_uvicorn_access_log

    @property
    def names(self) -> list[str]:
        """What clients may call the model; answers have the first."""
        given = self.served_model_name
        return [given] if isinstance(given, str) and given else list(given or [self.model])

    @property
    def hosts(self) -> list[str] | None:
        """Names that a browser of someone on this machine may be led to ask for. With a key, or on an address that
        others may reach by any name, only a list that was given is held to; None lets every name in."""
        from folovllm.serving.openai.middleware import is_loopback  # needs the extra `serve`

        if self.allowed_hosts or (not self.api_keys and is_loopback(self.host)):
            return [self.host, *self.allowed_hosts]
        return None


def name_and_path(module: str) -> tuple[str, str]:
    """Of an adapter: `name=path`, or {"name": …, "path": …} in JSON."""
    try:
        if not module.lstrip().startswith("{"):
            name, path = module.split("=", 1)
            return name, path
        given = json.loads(module)
        return str(given["name"]), str(given["path"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"""lora_modules must be NAME=PATH, or '{{"name": …, "path": …}}', got {module!r}""") from None
