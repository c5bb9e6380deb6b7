"""A span of OpenTelemetry for each request, under vLLM's names: imported only where --otlp-traces-endpoint is given.

A request with the header traceparent becomes a part of its client's trace. OpenTelemetry's own variables hold, too:
OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL (grpc, or http/protobuf).

vLLM: tracing/otel.py, tracing/utils.py (SpanAttributes), v1/engine/output_processor.py (do_tracing)
"""

from __future__ import annotations

import os
import time
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGRPC
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHTTP
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from folovllm.serving.logs import caller
from folovllm.serving.openai.ended import EndedRequest, phases
from folovllm.utils.checks import wrong

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


def check_protocol() -> str:
    """Raises ValueError: one that there is not."""
    protocol = os.environ.get(PROTOCOL, "grpc")
    if protocol not in ("grpc", "http/protobuf"):
        raise wrong(PROTOCOL, "be grpc or http/protobuf", protocol)
    return protocol


class Spans:
    """Raises: as check_protocol."""

    def __init__(self, endpoint: str, model_name: str) -> None:
        os.environ.setdefault("OTEL_SERVICE_NAME", "folovllm")
        self._provider, self._model_name = TracerProvider(resource=Resource.create()), model_name
        is_grpc, is_safe = check_protocol() == "grpc", endpoint.startswith("https:")
        exporter = OverGRPC(endpoint=endpoint, insecure=not is_safe) if is_grpc else OverHTTP(endpoint=endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("folovllm")

    def __call__(self, ended: EndedRequest) -> None:
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(caller.get().headers),
            kind=SpanKind.SERVER,
            start_time=int(ended.arrival_time * 1e9),
            attributes=self._attributes(ended),
        )
        if ended.output is None or not ended.output.finished:
            span.set_status(StatusCode.ERROR, ended.cut_off)
        span.end(int(((ended.times and ended.times.finished_time) or time.time()) * 1e9))

    def _attributes(self, ended: EndedRequest) -> dict[str, Any]:
        params, times, spent = ended.prompt.params, ended.times, phases(ended.times)
        found = {
            "request.id": caller.get().request_id,
            "request.n": params.n,
            "request.max_tokens": params.max_tokens,
            "request.temperature": params.temperature,
            "request.top_p": params.top_p,
            "response.model": self._model_name,
            "usage.prompt_tokens": len(ended.prompt.token_ids),
            "usage.completion_tokens": ended.num_output_tokens,
            "latency.time_to_first_token": times and times.ttft,
            "latency.e2e": times and times.e2e_latency,
            "latency.time_in_queue": spent.get("queue"),
            **{f"latency.time_in_model_{name}": spent.get(name) for name in ("prefill", "decode", "inference")},
        }
        return {f"gen_ai.{name}": value for name, value in found.items() if value is not None}

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
