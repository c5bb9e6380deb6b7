"""A conversation through a chat template, which is a program and gets bounds of time and of what it writes.

Jinja's sandbox keeps a template from files and from Python's insides, and lets it run for as long as it likes. A thread
cannot be ended from outside, so the template is changed before it is compiled: all that can repeat, or grow, passes by
a method of the environment, which asks the clock and counts.

    {% for m in messages %}{{ m.content | trim }}{% endfor %}
     ──▶  each round: step()   text that is written: written(…)   what a filter gets: bounded(…)   calls: call(…)

Jinja, its sandbox, and what transformers adds for templates (tojson, raise_exception, generation …) stay as they are.

vLLM: renderers/hf.py (safe_apply_chat_template)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from folovllm.engine.chat_messages import check_chat, refused_by_template
from folovllm.errors import PromptTooLongError
from folovllm.utils.checks import describe

MAX_SECONDS = 10.0
MAX_CHARS = 32 * 2**20
"""That a template writes in all, and the length of any text or list on the way."""
MAX_TEMPLATE_CHARS = 2**18
"""Of the template itself: compiling cannot be interrupted."""
_PADDING = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
_HERE = "\0here "  # where a message that is gone on with ends; without its space, the template trims messages


class TemplateTooLongError(TemplateError):
    """The template takes more than it may."""


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
    tools: what the template tells the model of, each {"type": "function", "function": {"name": …, …}}.
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
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if not calls:
            continue
        decoded = [_decoded(f"messages[{number}].tool_calls[{place}]", call) for place, call in enumerate(calls)]
        plain[number] = {**message, "content": message.get("content") or "", "tool_calls": decoded}
    return plain


def _decoded(name: str, call: Any) -> dict[str, Any]:
    try:
        arguments = call["function"].get("arguments") or "{}"
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
        if isinstance(call["function"]["name"], str) and isinstance(decoded, dict):
            return {**call, "function": {**call["function"], "arguments": decoded}}
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
    source = tokenizer.get_chat_template(chat_template)
    bounds = _Bounds(check)
    try:
        if continues:
            *before, last = messages
            messages = [*before, {**last, "content": last["content"] + _HERE}]
        given = {**tokenizer.special_tokens_map, "tools": None, "documents": None, **variables, "messages": messages}
        # Only what JSON has: objects may have methods that do things, and the sandbox does not know them.
        plain = json.loads(json.dumps(given, default=lambda value: f"<{type(value).__name__}>"))
        text = Template.from_code(bounds, _compiled(source), bounds.make_globals(None)).render(plain)
        if continues:
            text = _up_to_here(text)
        return text
    except Exception as error:  # a program that is not ours may fail in any way
        if error is bounds.ended_by:
            raise
        problem = "it calls itself too often" if isinstance(error, RecursionError) else str(error)
        raise refused_by_template(tokenizer, messages, chat_template, problem) from error


def _up_to_here(text: str) -> str:
    end = text.rfind(_HERE.strip())
    if end < 0:
        raise TemplateError("it leaves out the last message, which is to be gone on with")
    return text[:end] if text.startswith(_HERE, end) else text[:end].rstrip()


class _Bounds(ImmutableSandboxedEnvironment):
    """An environment for one run of a template. Its limits are its own, so that threads need not share any."""

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self, check: Callable[[], None]) -> None:
        theirs = _theirs()
        extensions = [type(extension) for extension in theirs.extensions.values()]
        # Not optimised: what is constant would be computed as the template is compiled, and unbounded.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        self.filters.update(theirs.filters)
        self.globals.update(theirs.globals)
        self.check = check
        self.ended_by: Exception | None = None
        self.num_steps = self.num_chars = 0
        self.began = time.monotonic()

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps % 64 and self.num_steps > 1:
            return
        try:
            self.check()
        except Exception as error:
            self.ended_by = error
            raise
        if time.monotonic() - self.began > MAX_SECONDS:
            raise TemplateTooLongError(f"it takes more than {MAX_SECONDS:g} s")

    def bounded(self, value: Any) -> Any:
        self.step()
        if isinstance(value, (str, list, tuple, dict)) and len(value) > MAX_CHARS:
            raise TemplateTooLongError(f"it makes a value of {len(value)} parts, and may have {MAX_CHARS}")
        return value

    def written(self, value: Any) -> str:
        text = str(self.bounded(value))
        self.num_chars += len(text)
        if self.num_chars > MAX_CHARS:
            raise TemplateTooLongError(f"it writes more than {MAX_CHARS} characters")
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  as in the sandbox
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # a counter, which no template can name
            return __obj(*args)
        if isinstance(owner, str) and __obj.__name__ in _PADDING:
            __self._check_length(max((arg for arg in args if isinstance(arg, int)), default=0))
        return __self.bounded(super().call(__context, __obj, *args, **kwargs))

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self.bounded(super().call_filter(name, self.bounded(value), *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_length(left.bit_length() * max(right, 0))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, int):
                    self._check_length(other * (one.bit_length() // 8 if isinstance(one, int) else _length(one)))
        return self.bounded(super().call_binop(context, operator, left, right))

    def _check_length(self, length: int) -> None:
        if length > MAX_CHARS:
            raise TemplateTooLongError(f"it makes a value of more than {MAX_CHARS} parts")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


class _Counting(NodeTransformer):
    """Puts the counters into a template that has been parsed."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  as jinja's visitor has it
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_pass_by("step")))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802  as jinja's visitor has it
        self.generic_visit(node)
        node.nodes = [_pass_by("written", each) for each in node.nodes]
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:  # noqa: N802  as jinja's visitor has it
        self.generic_visit(node)
        if node.node is not None:
            node.node = _pass_by("bounded", node.node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802  as jinja's visitor has it
        self.generic_visit(node)
        return _pass_by("bounded", node)


def _pass_by(method: str, *values: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(values), [], None, None)


@lru_cache(maxsize=32)
def _compiled(source: str) -> CodeType:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateTooLongError(f"it has {len(source)} characters, and may have {MAX_TEMPLATE_CHARS}")
    environment = _Bounds(lambda: None)
    tree = _Counting().visit(environment.parse(source))
    for node in tree.find_all(nodes.Node):
        node.lineno = node.lineno or 1
    return environment.compile(tree.set_environment(environment))


def check_template(source: str) -> None:
    """Raises ValueError: Jinja cannot compile it."""
    try:
        _compiled(source)
    except TemplateError as error:
        raise ValueError(
            f"chat_template must be a template that Jinja can compile, got {describe(source)}: {error}"
        ) from None


def _theirs() -> Environment:
    """An environment as transformers has it: the filters, names and tags that models' templates use."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template("").environment
