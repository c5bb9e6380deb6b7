"""Errors as OpenAI's interface has them: {"error": {"message", "type", "param", "code"}}, `param` naming the field.

vLLM: entrypoints/serve/exception_handling/error_response.py
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from folovllm.errors import EngineDeadError
from folovllm.serving.openai.body import CHANGES_NOTHING, MAX_FIELDS
from folovllm.utils.checks import did_you_mean
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}


_ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
CLIENT_CLOSED_REQUEST = 499  # what nginx writes down for a client that has left; it is not sent
_LONGEST = 1000  # characters of a message, whatever it quotes


class APIError(HTTPException):
    """An answer that is an error. `param` is the field of the request that it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, _short(message), headers)
        self.status, self.message, self.headers = status, self.detail, headers
        self.param, self.code = None if param is None else _short(param), code

    def body(self, scope: Scope) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        if is_anthropic(scope):
            kind = _ANTHROPIC_TYPES.get(self.status, kind)
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, scope: Scope) -> JSONResponse:
        return JSONResponse(self.body(scope), self.status, self.headers)


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is one of Anthropic's interface, which has errors and streams in another shape."""
    return "/v1/messages" in scope["path"]


def _short(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate may come in with a field's name
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def refused(error: APIError | ValueError) -> APIError:
    """A request that is refused. The message begins with the field's name, or is about "the body"."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, ValidationError):
        return first_problem(error.errors(include_url=False))
    name = re.match(r"(?!the body)[a-z_]+(\[[^\]]*\]|\.[a-z_]+)*(?=[ (])", str(error))
    return APIError(400, str(error), param=name.group(0) if name else None)


def failed(error: BaseException) -> APIError:
    """A request that was taken and could not be finished. Its text is its client's, so the log has the kind alone, but
    all of what ended the engine."""
    if isinstance(error, APIError):
        return error
    is_dead = isinstance(error, EngineDeadError)
    logger.error("a request ended in %s", type(error).__name__ + (f": {error}" if is_dead else ""))
    logger.debug("what it was", exc_info=error)
    status, code = (503, "engine_dead") if is_dead else (500, "engine_error")
    return APIError(status, f"the engine could not finish this request: {type(error).__name__}", code=code)


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Around a chat request that another body becomes. names: what it calls a field, and how that body does.

    Raises APIError: what is wrong, by that body's names."""
    try:
        yield
    except (APIError, ValueError) as raised:
        error = refused(raised)
        name = next((name for name in names if (error.param or "").startswith(name)), None)
        if name is None:
            raise error from None
        message, param = (text.replace(name, names[name], 1) for text in (error.message, error.param or ""))
        raise APIError(error.status, message, param=param, code=error.code) from raised


def add_error_handlers(app: FastAPI) -> None:
    async def answered(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            error = first_problem(error.errors())
        elif isinstance(error, TimeoutError):  # of the engine
            error = APIError(503, str(error), code="engine_stuck", headers={"Retry-After": "1"})
        elif isinstance(error, HTTPException) and not isinstance(error, APIError):
            text, path = str(error.detail), request.url.path
            if error.status_code == 405:
                text = f"{path} must be asked by {(error.headers or {}).get('Allow')}, got {request.method}"
            if error.status_code == 404:
                hint = did_you_mean(path, [route.path for route in request.app.routes]) or "GET /docs shows them"
                text = f"{path} must be a route of this server; {hint}"
            error = APIError(error.status_code, text, headers=dict(error.headers or {}))
        return failed(error).response(request.scope)

    for kind in (HTTPException, RequestValidationError, TimeoutError, EngineDeadError):
        app.add_exception_handler(kind, answered)


# What a value has to be, by pydantic's name for the opposite.
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "none_required": "null",
}


def first_problem(problems: Sequence[Any]) -> APIError:
    """pydantic's report, of which one entry is shown: of the first field, what is too much, or the one that came
    furthest. Where a value may be of several kinds, each kind has reported."""
    top = problems[0]["loc"][:1]
    of_it = [problem for problem in problems if problem["loc"][:1] == top]
    first = max(of_it, key=lambda problem: (problem["type"] in (*_TOO_MUCH, "near"), len(problem["loc"])))
    param, got = _param(first["loc"]), _as_json(reprlib.repr(first["input"]))
    if first["type"] == "near":
        name = first["ctx"]["name"]
        param, hint = f"{param}.{name}" if param else name, f"did you mean {first['ctx']['near']!r}?"
        return APIError(400, f"{param} is not a field of this request; {hint}", param=param)
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        wanted = "is not a field of this request, or not supported: leave it out"
        if name.startswith("guided_"):
            form = _GUIDED.get(name, name.removeprefix("guided_"))
            wanted = f"must be null: send {form} in structured_outputs, got {got}"
        elif name in CHANGES_NOTHING:
            taken = " or ".join(dict.fromkeys(json.dumps(value) for value in (*CHANGES_NOTHING[name], None)))
            wanted = f"must be {taken}: nothing else is supported here"
        return APIError(400, f"{param} {wanted}", param=param)
    if first["type"] == "union_tag_invalid":
        param, kinds = f"{param}.type", re.sub(r"[][]", "", first["ctx"]["expected_tags"])
        return APIError(400, f"{param} must be one of {kinds}, got {reprlib.repr(first['input']['type'])}", param=param)
    if first["type"] == "missing":
        return APIError(400, f"{param} must be given", param=param)
    if first["type"] in _TOO_MUCH:
        got = "more" if first["type"] == "too_much_json" else str(len(first["input"]))
        wanted = _TOO_MUCH[first["type"]].format(first["ctx"].get("max_length"))
        return APIError(400, f"{param or 'the body'} must have at most {wanted}, got {got}: send less", param=param)
    kinds = " or ".join(dict.fromkeys(_wanted(problem) for problem in problems if _param(problem["loc"]) == param))
    verb = "" if kinds.startswith("have ") else "be "
    return APIError(400, f"{param or 'the body'} must {verb}{kinds}, got {got}", param=param)


_TOO_MUCH = {
    "too_long": "{} entries", "string_too_long": "{} characters", "too_many_fields": f"{MAX_FIELDS} fields",
    "too_much_json": "{} characters of JSON",
}  # fmt: skip
_GUIDED = {"guided_decoding": "json, regex, choice or grammar", "guided_json_object": "json_object"}
"""Where structured_outputs does not call it by the rest of its name."""


def _as_json(text: str) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(text, text)


def _wanted(problem: Any) -> str:
    if problem["type"] == "literal_error":
        return _as_json(str(problem["ctx"]["expected"]))
    return _WANTED.get(problem["type"]) or re.sub(r"^\w+ should (be )?", "", str(problem["msg"]))


_KIND = re.compile(r"[\[\]()-]|^(str|int|float|bool|list|dict|NamedTool|NamedFunction)$")
"""Which of several kinds pydantic has tried, as a place in its report."""


def _param(loc: Sequence[Any]) -> str | None:
    """The field's name as a client writes it: messages[0].content."""
    param = None
    for part in loc:
        if isinstance(part, int):
            param = f"{param}[{part}]"
        elif part != "body" and not _KIND.search(part):
            param = f"{param}.{part}" if param else part
    return param
