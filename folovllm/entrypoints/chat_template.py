"""Chat templates: a conversation becomes a prompt. A template is a program, and template_process.py runs it elsewhere.

vLLM: renderers/hf.py (safe_apply_chat_template)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from folovllm.engine.chat_messages import check_chat, refused_by_template
from folovllm.entrypoints import template_process
from folovllm.entrypoints.template_process import TemplateFailedError
from folovllm.errors import PromptTooLongError
from folovllm.utils.checks import describe

_HERE = "\0here "  # where a message that is gone on with ends; without its space, the template trims messages


def conversation_to_prompt(
    tokenizer: Any,
    messages: Any,
    *,
    add_special_tokens: bool = False,
    check: Callable[[], None] = lambda: None,
    max_characters: int | None = None,
    tools: list[dict[str, Any]] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """chat_to_prompt in bounds; for `asked`, and what else it raises, see check_chat.

    messages: an assistant's may have `tool_calls`, as OpenAI's interface has them, and those of role "tool" answer.
    tools: what the template shows the model, each {"type": "function", "function": {"name": …, …}}.
    add_special_tokens: put the tokenizer's own, such as BOS, around what the template writes; most write them already.
    max_characters: longer than this, the rendered text is refused before it is tokenised.
    check, and Raises: as for render_template; also PromptTooLongError.
    """
    plain, options = check_chat(tokenizer, _with_plain_calls(messages), **asked)
    text = render_template(tokenizer, plain, options if tools is None else {"tools": tools, **options}, check=check)
    check_characters("messages", text, max_characters)
    token_ids = tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
    return {"prompt": text, "prompt_token_ids": list(token_ids)}


def _with_plain_calls(messages: Any) -> Any:
    """Arguments of calls as templates take them, decoded. Raises ValueError: they are no JSON object."""
    if not isinstance(messages, (list, tuple)):
        return messages
    plain = list(messages)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "tool_calls" not in message:
            continue
        calls = message["tool_calls"]
        if not calls:  # templates ask whether there is such a field
            plain[number] = {name: value for name, value in message.items() if name != "tool_calls"}
            continue
        decoded = [_decoded(f"messages[{number}].tool_calls[{place}]", call) for place, call in enumerate(calls)]
        plain[number] = {**message, "content": message.get("content") or "", "tool_calls": decoded}
    return plain


def _decoded(name: str, call: Any) -> dict[str, Any]:
    try:
        arguments = call["function"].get("arguments") or "{}"
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
        if isinstance(call["function"]["name"], str) and isinstance(decoded, dict):
            kept = {name: value for name, value in call.items() if name != "index"}  # of a message added up from deltas
            return {**kept, "function": {**call["function"], "arguments": decoded}}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        pass
    form = "{'function': {'name': ..., 'arguments': ...}}, the arguments a JSON object"
    raise ValueError(f"{name} must be {form}, got {describe(call)}")


def check_characters(name: str, text: str, most: int | None) -> None:
    """Raises PromptTooLongError: whatever its tokens are, they are too many."""
    if most is not None and len(text) > most:
        raise PromptTooLongError(
            f"{name} must have at most {most} characters, got {len(text)}: whatever its tokens are, they exceed "
            f"max_model_len; shorten it"
        )


def render_template(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    *,
    check: Callable[[], None] = lambda: None,
) -> str:
    """The conversation as the template writes it; the tokenizer's own template where none is given.

    options: as apply_chat_template takes them: chat_template, continue_final_message, and the template's variables.
    check: asked now and then while the template runs. What it raises ends that, and comes through.

    Raises:
        ValueError: the template fails, refuses these messages, or goes beyond its bounds. The text says which template.
    """
    variables = dict(options)
    chat_template, continues = variables.pop("chat_template", None), variables.pop("continue_final_message", False)
    if continues:
        *before, last = messages
        messages = [*before, {**last, "content": last["content"] + _HERE}]
    given = {**tokenizer.special_tokens_map, "tools": None, "documents": None, **variables, "messages": messages}
    try:
        source = _source(tokenizer, chat_template, variables.get("tools"))
        text = template_process.render(_request(source, given), check)
        return _up_to_here(text) if continues else text
    except TemplateFailedError as error:
        raise refused_by_template(tokenizer, messages, chat_template, error) from None


def _source(tokenizer: Any, chat_template: str | None, tools: Any) -> str:
    try:
        return str(tokenizer.get_chat_template(chat_template, tools=tools))  # there may be one for tools
    except ValueError as error:  # of several templates none is the default
        raise TemplateFailedError(str(error)) from None


def _request(source: str, given: dict[str, Any]) -> bytes:
    """Only what JSON has goes there; of other objects their name."""
    limits = template_process.MAX_CHARS, template_process.MAX_SECONDS
    try:
        plain = json.dumps([source, given, *limits], default=lambda value: f"<{type(value).__name__}>")
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateFailedError(f"they must be what JSON can hold: {error}") from None
    return plain.encode()


def _up_to_here(text: str) -> str:
    end = text.rfind(_HERE.strip())
    if end < 0:
        raise TemplateFailedError("it leaves out the last message, which is to be gone on with")
    return text[:end] if text.startswith(_HERE, end) else text[:end].rstrip()


def check_template(source: str) -> None:
    """Raises ValueError: Jinja cannot read it. It is not run."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        _compile_jinja_template("").environment.parse(source)
    except (TemplateError, RecursionError) as error:
        text = f"chat_template must be a template that Jinja can compile, got {describe(source)}: {error}"
        raise ValueError(text) from None
