"""Spans: a collector of OpenTelemetry in this process gets one for each request, in its client's trace."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as over_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from folovllm.entrypoints.cli.main import main
from folovllm.serving.openai.spans import PROTOCOL
from tests.serve.support import running, wait_for

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(over_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            known = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(known["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return service.ExportTraceServiceResponse()


@pytest.fixture(params=["grpc", "http/protobuf"])
def collector(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, str]]:
    monkeypatch.setenv(PROTOCOL, request.param)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the test")
    found = Collector()
    if request.param == "grpc":
        server = grpc.server(ThreadPoolExecutor())
        over_grpc.add_TraceServiceServicer_to_server(found, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield found, f"grpc://127.0.0.1:{port}"
        server.stop(None).wait()
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.Export(service.ExportTraceServiceRequest.FromString(body), None)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever).start()
        yield found, f"http://127.0.0.1:{http.server_port}/v1/traces"
        http.shutdown()


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_each_request_is_a_span_of_its_clients_trace(collector: tuple[Collector, str]) -> None:
    found, endpoint = collector
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    ask = {"prompt": ["Once upon", "A"], "max_tokens": 5, "n": 2, "temperature": 0.5, "ignore_eos": True}
    with running(otlp_traces_endpoint=endpoint, generation_config="vllm") as server:
        url = f"{server.url}/v1/completions"
        usage = httpx.post(url, json=ask, headers=headers, timeout=600).json()["usage"]
        chat = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=600).json()
        most = server.llm.engine.max_model_len - answer["usage"]["prompt_tokens"]
        metrics = httpx.get(f"{server.url}/metrics").text
        (asked,) = re.findall(r"^vllm:request_params_max_tokens_sum\S+ (.*)$", metrics, re.M)
        assert float(asked) == 2 * 5 + most
    # Each was sent before the server ended.
    ours = [span for span in found.spans if span.trace_id.hex() == TRACE]
    (other,) = (span for span in found.spans if span not in ours)
    assert (found.services, len(ours), other.parent_span_id) == ({"the test"}, 2, b"")
    seen = {(span.name, span.kind, span.parent_span_id.hex()) for span in ours}
    assert seen == {("llm_request", Span.SPAN_KIND_SERVER, PARENT)}
    assert attributes(other)["gen_ai.request.max_tokens"] == most
    said = [attributes(span) for span in ours]
    for each, span in zip(said, ours, strict=True):
        assert each["gen_ai.request.id"] == "mine"
        assert (each["gen_ai.request.n"], each["gen_ai.request.max_tokens"]) == (2, 5)
        assert (each["gen_ai.request.temperature"], each["gen_ai.response.model"]) == (0.5, "embedded")
        assert each["gen_ai.usage.completion_tokens"] == 10
        parts = [each[f"gen_ai.latency.time_in_{part}"] for part in ("queue", "model_prefill", "model_decode")]
        assert sum(parts) == pytest.approx(each["gen_ai.latency.e2e"])
        assert parts[0] + parts[1] == pytest.approx(each["gen_ai.latency.time_to_first_token"])
        assert span.end_time_unix_nano > span.start_time_unix_nano
        assert span.status.code == Status.STATUS_CODE_UNSET
    assert sum(each["gen_ai.usage.prompt_tokens"] for each in said) == usage["prompt_tokens"]


def test_a_request_that_its_client_leaves_is_a_span_with_an_error(collector: tuple[Collector, str]) -> None:
    found, endpoint = collector
    ask = {"prompt": "Once", "stream": True, "max_tokens": 900, "ignore_eos": True}
    with running(otlp_traces_endpoint=endpoint) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=ask, timeout=600) as answer:
            next(answer.iter_lines())
        wait_for(server.is_idle)
    (span,) = found.spans
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "abort")
    known = {name.removeprefix("gen_ai.latency.") for name in attributes(span) if "latency" in name}
    assert known == {"time_to_first_token", "time_in_queue", "time_in_model_prefill"}  # it was not decoded to its end


def test_a_protocol_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PROTOCOL, "udp")
    assert main(["serve", "--otlp-traces-endpoint", "http://127.0.0.1:4318"]) == 2
    assert f"{PROTOCOL} must be grpc or http/protobuf, got 'udp'" in capsys.readouterr().err


def test_without_an_endpoint_no_part_of_it_is_imported() -> None:
    """FastAPI itself imports the interface, opentelemetry-api, where it is there."""
    code = (
        "import sys\n"
        "from folovllm import AsyncLLM\n"
        "from folovllm.serving.openai.app import make_app\n"
        "from folovllm.serving.openai.options import ServerOptions\n"
        "make_app(AsyncLLM(num_kv_blocks=64), ServerOptions())\n"
        "parts = ('opentelemetry.sdk', 'opentelemetry.exporter', 'folovllm.serving.openai.spans')\n"
        "print([name for name in sys.modules if name.startswith(parts)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
