"""The base of all bodies: how much a field may hold, and which fields are left out.

A field that no one here knows is left out at every depth, with a line in the log, or refused. What would change the
answer, and cannot be done, always is refused.

vLLM: none
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from folovllm.entrypoints.cli.parser import said_of
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import nearest_name

_T = TypeVar("_T")
Listed = Annotated[list[_T], Field(fail_fast=True)]
"""One entry of a wrong type is enough: the others are not looked at."""
TokenIds = Listed[int]
Words = Annotated[str, Field(max_length=1024)]
MAX_FIELDS = 64  # of one object
MAX_JSON = 2**16  # characters of a schema, or of a template's variables
MAX_NAME = 64  # characters of a name that is compared with others


def at_most(entries: int) -> Any:
    """Each limit is far above what a request needs, and so low that what is under it costs milliseconds."""
    return Field(max_length=entries, fail_fast=True)


def by_type(otherwise: str) -> Discriminator:
    """Which of several kinds an object is, by its `type`, or `otherwise` where it has none. Each has Tag("[type]")."""

    def kind(given: Any) -> str:
        named = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
        return f"[{named or otherwise}]"

    return Discriminator(kind)


def _bounded(given: Any) -> Any:
    """Its characters without punctuation are counted: all but a text is one."""
    size, waiting = 0, [given]
    while waiting and size <= MAX_JSON:
        part = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        if isinstance(part, (list, dict)):
            waiting += part
        if isinstance(part, dict):
            waiting += part.values()
    if size > MAX_JSON:
        raise PydanticCustomError("too_much_json", "have less", {"max_length": MAX_JSON})
    return given


FreeJson = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""An object whose names are the client's own."""


# Fields that change no answer of this engine, with the values of which that is true; none: of any. null always is one.
CHANGES_NOTHING: dict[str, list[Any]] = {
    # a client's own bookkeeping
    "user": [],
    "metadata": [],
    "service_tier": [],
    "prompt_cache_key": [],
    "safety_identifier": [],
    "prompt_cache_retention": [],
    "store": [False],
    "include_obfuscation": [],
    "cache_control": [],
    "guided_decoding_backend": [],
    # what clients make of an answer, and send back with it
    "annotations": [],
    "parsed": [],
    "parsed_arguments": [],
    "provider_specific_fields": [],
    "id": [],
    "status": [],
    "phase": [],
    "citations": [],
    "signature": [],
    # what this engine does anyway
    "modalities": [["text"]],
    "include_reasoning": [True],
    "mm_processor_kwargs": [{}],
    "media_io_kwargs": [{}],
    "logits_processors": [[]],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "spaces_between_special_tokens": [],
    "suffix": [""],
    "documents": [[]],
    # without tools there is nothing to choose; a chat request has the fields themselves
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "parallel_tool_calls": [],
    # null alone: they would change the answer, and the engine does not have them
    **{
        name: [None]
        for name in (
            "truncate_prompt_tokens", "kv_transfer_params", "thinking_token_budget", "audio", "prediction",
            "web_search_options", "conversation", "prompt_embeds", "structural_tag", "whitespace_pattern",
            "disable_any_whitespace", "truncation_side", "max_tokens_per_query", "max_tokens_per_doc", "embed_dtype",
            "endianness", "instruction", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
            "guided_json_object", "guided_decoding", "guided_whitespace_pattern",
        )
    },
}  # fmt: skip


class Body(BaseModel):
    """Values have the type that they are documented with: "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, given: Any, info: ValidationInfo) -> Any:
        """Without the fields that need not be known. Those that are left are refused, for they are none of cls.

        info.context: is called with the name of a field that is left out; None: it is refused."""
        if not isinstance(given, dict):
            return given
        if len(given) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "have at most {most} fields", {"most": MAX_FIELDS})
        known, left = _names(cls), set()
        for name in given:
            if name in known:
                continue
            if not _changes_nothing(name, given[name]):
                if info.context is None or name in CHANGES_NOTHING or (issubclass(cls, WholeBody) and name in _asked()):
                    continue
                if near := nearest_name(name, known) if len(name) <= MAX_NAME else None:
                    raise PydanticCustomError("near", "{name}", {"name": name, "near": near})
                info.context(name)
            left.add(name)
        return {name: value for name, value in given.items() if name not in left} if left else given


class WholeBody(Body):
    """The whole of a body. What other requests may ask for, and this one not, is never left out in silence."""


def described(**example: Any) -> ConfigDict:
    """For /docs: an example of a body, and what those of its fields are for that SamplingParams has, too."""
    said = said_of(SamplingParams)

    def add(schema: dict[str, Any]) -> None:
        schema["examples"] = [example]
        for name in said.keys() & schema["properties"].keys():
            schema["properties"][name]["description"] = said[name].partition(" (default")[0]

    return ConfigDict(json_schema_extra=add)


def _changes_nothing(name: str, value: Any) -> bool:
    return value is None or (name in CHANGES_NOTHING and (not CHANGES_NOTHING[name] or value in CHANGES_NOTHING[name]))


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """As they are written in JSON."""
    names = [field.validation_alias or name for name, field in kind.model_fields.items()]
    return frozenset(str(each) for name in names for each in (getattr(name, "choices", None) or [name]))


@cache
def _asked(kind: type[BaseModel] = WholeBody) -> frozenset[str]:
    """Fields of every kind of request."""
    return _names(kind).union(*map(_asked, kind.__subclasses__()))
