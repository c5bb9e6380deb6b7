"""What comes in as a conversation, brought into the form that every chat template takes: a text for each message.

vLLM: renderers/chat_utils.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from folovllm.engine.chat_template import render_template
from folovllm.utils.checks import check_utf8, describe


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


def render(tokenizer: Any, messages: list[dict[str, Any]], **template_args: Any) -> str:
    """The conversation as the model's chat template writes it, up to where the answer begins.

    Raises:
        ValueError: the template refuses it, as some do with a system message or roles in another order, or does not
            end.
    """
    template = template_args.pop("chat_template", None)
    return render_template(
        tokenizer, messages, {"add_generation_prompt": True, **template_args}, chat_template=template
    )
