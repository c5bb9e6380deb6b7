"""A conversation becomes a prompt: checked, in the form that every chat template takes, and through a template.

vLLM: renderers/chat_utils.py
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from folovllm.utils.checks import check_bool, check_str, check_utf8, describe, wrong


def chat_to_prompt(tokenizer: Any, messages: Any, **asked: Any) -> dict[str, Any]:
    """Messages through the chat template, straight to token ids. `asked`, and what it raises: see check_chat.

    Not to text that is then tokenised: the template writes the special tokens itself, and tokenising its text would
    put a second BOS before the first.
    """
    plain, options = check_chat(tokenizer, messages, **asked)
    try:
        text = tokenizer.apply_chat_template(plain, tokenize=False, **options)
    except Exception as error:  # a template is a program: some refuse a system message, or roles in another order
        raise refused_by_template(tokenizer, plain, options["chat_template"], error) from None
    return {"prompt": text, "prompt_token_ids": list(tokenizer(text, add_special_tokens=False)["input_ids"])}


def check_chat(
    tokenizer: Any,
    messages: Any,
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages as every template takes them, and the options of the tokenizer's apply_chat_template.

    Raises:
        ValueError: what is no conversation, arguments that contradict each other, no tokenizer or template at all.
    """
    check_bool("add_generation_prompt", add_generation_prompt)
    check_bool("continue_final_message", continue_final_message)
    if continue_final_message and add_generation_prompt:
        way_out = "give add_generation_prompt=False"
        raise wrong("continue_final_message", "be False with add_generation_prompt=True", True, way_out)
    if chat_template is not None:
        check_str("chat_template", chat_template)
    if tokenizer is None:
        raise ValueError("messages need a tokenizer, but skip_tokenizer_init leaves none: give token ids to generate()")
    if chat_template is None and not getattr(tokenizer, "chat_template", None):
        raise ValueError("messages need a chat template, but this model's tokenizer has none: give chat_template")
    options: dict[str, Any] = {"chat_template": chat_template, "add_generation_prompt": add_generation_prompt}
    options["continue_final_message"] = continue_final_message
    if not isinstance(chat_template_kwargs, dict | None):
        raise wrong("chat_template_kwargs", "be a dict", chat_template_kwargs)
    # The others are apply_chat_template's own: some are above, and the rest would change what it returns.
    variables = {"tools", "documents"}
    for name in inspect.signature(tokenizer.apply_chat_template).parameters.keys() - variables:
        if name in (chat_template_kwargs or ()):
            raise ValueError(f"chat_template_kwargs must not have {name!r}, which is no variable of a template")
    return plain_messages(messages), options | (chat_template_kwargs or {})


def refused_by_template(tokenizer: Any, plain: list[dict[str, Any]], given: str | None, problem: object) -> ValueError:
    """given: the template, where it is not the tokenizer's own."""
    if given is not None:
        return ValueError(f"chat_template must be a template that takes these messages: {problem}")
    name, roles = getattr(tokenizer, "name_or_path", "") or "the model", [message["role"] for message in plain]
    return ValueError(f"messages must suit the chat template of {name}, got the roles {roles}: {problem}")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Copies whose content is text: a message may also give it in parts, [{"type": "text", "text": ...}, ...].

    Raises:
        ValueError: what is no list of messages, a content that is no text, or text that no tokenizer takes.
    """
    if not messages or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in messages):
        raise ValueError(f"messages must be a list of {{'role': ..., 'content': ...}}, got {messages!r}")
    plain = []
    for number, message in enumerate(messages):
        name = f"messages[{number}]['content']"
        if not isinstance(message["role"], str):
            raise ValueError(f"messages[{number}]['role'] must be text, got {describe(message['role'])}")
        content = message["content"]
        if isinstance(content, (list, tuple)):
            content = "\n".join(_part(f"{name}[{place}]", part) for place, part in enumerate(content))
        if not isinstance(content, str):
            raise ValueError(f"{name} must be text, or a list of text parts, got {describe(content)}")
        check_utf8(name, content)
        plain.append({**message, "content": content})
    return plain


def _part(name: str, part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = f"a part of type {part['type']!r}" if isinstance(part, Mapping) and "type" in part else describe(part)
    raise ValueError(f"{name} must be {{'type': 'text', 'text': ...}}, got {kind}: the models here read text alone")
