"""Chat templates: a conversation becomes a prompt, through transformers' own sandbox for templates.

vLLM: renderers/hf.py (safe_apply_chat_template)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from folovllm.engine.chat_messages import check_chat, refused_by_template
from folovllm.errors import PromptTooLongError
from folovllm.utils.checks import describe


def conversation_to_prompt(
    tokenizer: Any,
    messages: Any,
    *,
    add_special_tokens: bool = False,
    max_characters: int | None = None,
    tools: list[dict[str, Any]] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """chat_to_prompt with tools and bounds; for `asked`, and what else it raises, see check_chat.

    messages: an assistant's may have `tool_calls`, as OpenAI's interface has them, and those of role "tool" answer. The
        role "developer" is "system" to a template that does not name it.
    tools: what the template shows the model, each {"type": "function", "function": {"name": …, …}}.
    add_special_tokens: put the tokenizer's own, such as BOS, around what the template writes; most write them already.
    max_characters: longer than this, the rendered text is refused before it is tokenised.

    Raises:
        ValueError: the template fails, refuses these messages, or leaves one out whose role it does not name.
        PromptTooLongError: more than max_characters.
    """
    given, options = check_chat(tokenizer, _with_plain_calls(messages), **asked)
    options = {"tools": tools, **options}
    try:
        # Of several templates, one may be for tools.
        source = str(tokenizer.get_chat_template(options["chat_template"], tools=options["tools"]))
        known = {"developer": "system"} if "developer" not in source else {}
        plain = [{**message, "role": known.get(message["role"], message["role"])} for message in given]
        text = str(tokenizer.apply_chat_template(plain, tokenize=False, **{**options, "chat_template": source}))
    except Exception as error:  # a template is a program: some refuse a system message, or roles in another order
        raise refused_by_template(tokenizer, given, options["chat_template"], error) from None
    place = 0
    for number, message in enumerate(plain):
        is_known = message["role"] in ("user", "assistant") or message["role"] in source
        place = place if is_known else text.find(message["content"].strip(), place)
        if place < 0:
            raise ValueError(
                f"messages[{number}].role must be one that the chat template knows, got {given[number]['role']!r}: it "
                "leaves this message out"
            )
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


def check_template(source: str) -> None:
    """Raises ValueError: Jinja cannot read it. It is not run."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        _compile_jinja_template("").environment.parse(source)
    except (TemplateError, RecursionError) as error:
        text = f"chat_template must be a template that Jinja can compile, got {describe(source)}: {error}"
        raise ValueError(text) from None
