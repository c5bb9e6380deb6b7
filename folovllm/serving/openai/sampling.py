"""A body's sampling fields as SamplingParams: the server's defaults under the fields that it gives.

vLLM: entrypoints/openai/completion/protocol.py (to_sampling_params)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from folovllm.outputs import check_can_stream
from folovllm.sampling_params import SamplingParams
from folovllm.serving.openai.bodies import check_json
from folovllm.serving.openai.protocol import Sampling
from folovllm.structured_outputs import StructuredOutputsParams

_FIELDS = {field.name for field in fields(SamplingParams)} & Sampling.model_fields.keys() - {"structured_outputs"}


def to_sampling_params(body: Sampling, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """`more`: fields that the two kinds of completions spell differently.

    Raises:
        ValueError: a wrong value, by name.
    """
    if body.stream and body.prompt_logprobs is not None:
        raise ValueError("prompt_logprobs must not be given with stream=true: they come with a whole answer")
    if body.return_tokens_as_token_ids and body.logprobs in (None, False):  # type: ignore[attr-defined]
        raise ValueError("return_tokens_as_token_ids must not be given without logprobs, whose tokens it is about")
    if body.use_beam_search:  # beams are ranked by the model's own probabilities: only the length is a default
        defaults = {name: value for name, value in defaults.items() if name == "max_tokens"}
    more["extra_args"] = body.vllm_xargs or None
    given = {name: value for name in _FIELDS if (value := getattr(body, name)) is not None}
    params = SamplingParams.from_optional(**{**defaults, **given, **more}, structured_outputs=_form(body))
    if body.stream:
        check_can_stream(params)
    elif body.stream_options is not None:
        raise ValueError("stream_options must not be given without stream=true")
    return params


def _form(body: Sampling) -> StructuredOutputsParams | None:
    """The form that a body asks for, by either of the two fields."""
    asked = body.response_format
    form = None
    if asked is not None and asked.type == "json_object":
        form = StructuredOutputsParams(json_object=True)
    elif asked is not None and asked.type == "json_schema":
        if asked.json_schema is None:
            raise ValueError("response_format.json_schema must be given with type 'json_schema'")
        form = StructuredOutputsParams(json=asked.json_schema.schema_)
    if asked is not None and asked.type != "json_schema" and asked.json_schema is not None:
        raise ValueError(f"response_format.json_schema must not be given with type {asked.type!r}")
    if body.structured_outputs is not None:
        if form is not None:
            raise ValueError("structured_outputs must not be given beside response_format: choose one of them")
        if isinstance(schema := body.structured_outputs.json_, str):
            check_json("structured_outputs.json", schema)
        form = StructuredOutputsParams(**body.structured_outputs.model_dump(by_alias=True))
    return form
