"""A conversation becomes a prompt, with what chat clients may ask of the template.

vLLM: renderers/chat_utils.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from folovllm.engine.chat_messages import plain_messages
from folovllm.engine.chat_template import render_template
from folovllm.engine.input_processor import Prompt
from folovllm.errors import PromptTooLongError
from folovllm.utils.checks import check_bool, check_str, wrong

# Arguments of apply_chat_template itself: some have a field of their own, and the others change what it returns.
_NOT_OF_THE_TEMPLATE = frozenset(
    (
        "conversation",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    )
)


def conversation_to_prompt(
    tokenizer: Any | None,
    messages: Any,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    chat_template: str | None = None,
    template_args: dict[str, Any] | None = None,
    add_special_tokens: bool = False,
    check: Callable[[], None] = lambda: None,
    max_characters: int | None = None,
) -> Prompt:
    """Messages through the chat template, straight to token ids.

    add_generation_prompt: end with the beginning of an answer.
    continue_final_message: end inside the last message, which the model goes on with; then no beginning is added.
    chat_template: another template than the tokenizer's own, in Jinja.
    add_special_tokens: put the tokenizer's own, such as BOS, around what the template writes; most write them already.
    check: asked while the template runs; what it raises ends that.
    max_characters: longer than this, the rendered text is refused before it is tokenised.

    Raises:
        ValueError: what is no conversation, a template that refuses it, or no tokenizer or template at all.
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
    if template_args is not None and not isinstance(template_args, dict):
        raise wrong("chat_template_kwargs", "be a dict", template_args)
    for name in _NOT_OF_THE_TEMPLATE & (template_args or {}).keys():
        raise ValueError(f"chat_template_kwargs must not have {name!r}, which is no variable of a template")
    plain = plain_messages(messages)
    text = render_template(
        tokenizer,
        plain,
        {**(template_args or {}), "add_generation_prompt": add_generation_prompt},
        chat_template=chat_template,
        continue_final_message=continue_final_message,
        check=check,
    )
    check_characters("messages", text, max_characters)
    return {
        "prompt": text,
        "prompt_token_ids": list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]),
    }


def check_characters(name: str, text: str, most: int | None) -> None:
    """Raises PromptTooLongError: whatever its tokens are, they are too many."""
    if most is not None and len(text) > most:
        raise PromptTooLongError(
            f"{name} must have at most {most} characters, got {len(text)}: whatever its tokens are, they exceed "
            f"max_model_len; shorten it"
        )


def check_no_tools(tools: object) -> None:
    """Raises ValueError: there is a list of tools, which no parser here reads answers for."""
    if tools:
        raise ValueError("tools must be None: calls of tools are not supported; ask for JSON by structured_outputs")


def check_no_lora(lora_request: object) -> None:
    """Raises ValueError: there is an adapter."""
    if lora_request is not None:
        raise ValueError(f"lora_request must be None, got {lora_request!r}: adapters are not supported")
