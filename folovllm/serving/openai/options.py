"""ServerOptions: what the server is configured with; the engine's options are beside them.

vLLM: entrypoints/launchers/cli_args.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from folovllm.config import EMBEDDED_MODEL
from folovllm.entrypoints.chat_template import check_template
from folovllm.serving.openai.middleware import is_loopback


@dataclass
class ServerOptions:
    """Args:
    served_model_name: what clients call the model, where it has another name.
    max_body_bytes: of a request; beyond, it is answered with 413.
    salt_by_key: prompts find each other's cached blocks only among requests of one key.
    generation_config: "auto" takes defaults from the checkpoint, "vllm" those of SamplingParams.
    trust_chat_template: requests may bring a chat template of their own, which is a program.
    tool_call_parser: the format that the model writes calls of tools in; None: by its chat template.
    reasoning_parser: how the model marks its thoughts; None: by its chat template.
    metrics_prefix: of the names at /metrics; with "vllm:" dashboards for vLLM fill.
    unknown_fields: of a body: "warn" leaves them out and says so in the log, "refuse" answers 400.
    chat_template: instead of the tokenizer's.
    root_path: what a proxy in front puts before this server's paths.
    ssl_certfile, ssl_keyfile: with the first the server speaks HTTPS.
    uvicorn_log_level: at "info" and below each request is a line.
    allowed_hosts: further names that clients may call this server by.
    allowed_origins: other sites whose pages may call this server from a browser (CORS); "*" is any.
    allowed_methods, allowed_headers, allow_credentials: what these pages may send.
    """

    model: str = EMBEDDED_MODEL
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Sequence[str] = ()
    max_queue: int = 1024
    max_body_bytes: int = 2 * 2**20
    salt_by_key: bool = False
    generation_config: str = "auto"
    trust_chat_template: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    metrics_prefix: str = "folovllm:"
    unknown_fields: str = "warn"
    chat_template: str | None = None
    root_path: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    uvicorn_log_level: str = "warning"
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()
    allowed_methods: Sequence[str] = ("*",)
    allowed_headers: Sequence[str] = ("*",)
    allow_credentials: bool = False

    def __post_init__(self) -> None:
        if self.chat_template is not None:
            check_template(self.chat_template)

    @property
    def name(self) -> str:
        return self.served_model_name or self.model

    @property
    def hosts(self) -> list[str] | None:
        """Names that a browser of someone on this machine may be led to ask for. With a key, or on an address that
        others may reach by any name, only a list that was given is held to; None lets every name in."""
        if self.allowed_hosts or (not self.api_keys and is_loopback(self.host)):
            return [self.host, *self.allowed_hosts]
        return None
