"""Chat templates: they write what transformers lets them write, and leave no message out in silence."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm.entrypoints.chat_template import conversation_to_prompt
from tests.m1.byte_tokenizer import byte_tokenizer

MESSAGES = [
    {"role": "system", "content": " be kind "},
    {"role": "user", "content": "hi <b>"},
    {"role": "assistant", "content": "你好"},
    {"role": "user", "content": ""},
]
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
# As Qwen3's: what has another role is passed over.
NAMED = (
    "{% for m in messages %}{% if m.role == 'system' or m.role == 'user' %}<{{ m.role }}>{{ m.content | trim }}\n"
    "{% elif m.role == 'assistant' %}<a>{{ m.content }}\n{% endif %}{% endfor %}"
)
TEMPLATES = [
    CHATML,
    "{% for m in messages %}{{ m | tojson }}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% if loop.index > 4 %}{% break %}{% endif %}{% endfor %}{% if tools is none %}!{% endif %}",
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


def prompt(tokenizer: Any, messages: list[dict[str, Any]], template: str | None, **more: Any) -> str:
    return str(conversation_to_prompt(tokenizer, messages, chat_template=template, **more)["prompt"])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_writes_what_transformers_lets_it_write(tokenizer: Any, template: str) -> None:
    ask = {"tokenize": False, "add_generation_prompt": True, "chat_template": template}
    assert prompt(tokenizer, MESSAGES, template) == tokenizer.apply_chat_template(MESSAGES, **ask)


@pytest.mark.parametrize("begun", ["The answer", " The answer \n", "[x"])
def test_a_message_is_gone_on_with_where_transformers_goes_on(tokenizer: Any, begun: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    more = {"continue_final_message": True}
    theirs = tokenizer.apply_chat_template(messages, tokenize=False, chat_template=CHATML, **more)
    assert prompt(tokenizer, messages, CHATML, add_generation_prompt=False, **more) == theirs


def test_a_developer_is_the_system_of_a_template_that_does_not_know_it(tokenizer: Any) -> None:
    developer = [{"role": "developer", "content": "be kind"}, *MESSAGES[1:]]
    system = [{**developer[0], "role": "system"}, *MESSAGES[1:]]
    assert prompt(tokenizer, developer, NAMED) == prompt(tokenizer, system, NAMED)
    assert prompt(tokenizer, developer, NAMED).startswith("<system>be kind\n")
    assert prompt(tokenizer, developer, "{# developer #}" + CHATML).startswith("<developer>be kind\n")


@pytest.mark.parametrize("role", ["developer", "system", "critic"])
def test_a_message_that_a_template_leaves_out_is_refused_by_its_role(tokenizer: Any, role: str) -> None:
    template = NAMED.replace("m.role == 'system' or ", "")
    wrong = rf"^messages\[1\]\.role must be one that the chat template knows, got '{role}': it leaves this message out"
    with pytest.raises(ValueError, match=wrong):
        prompt(tokenizer, [MESSAGES[1], {"role": role, "content": "be kind"}], template)
    assert prompt(tokenizer, [MESSAGES[1], {"role": role, "content": " "}], template)


@pytest.mark.parametrize(
    ("template", "problem"),
    [("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"), ("{{ 'x'.__class__.__mro__ }}", "unsafe"),
     ("{{ raise_exception('not these') }}", "not these")],
)  # fmt: skip
def test_the_error_names_the_template(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^chat_template must be a template that takes these messages: .*{problem}"):
        prompt(tokenizer, MESSAGES, template)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    monkeypatch.setattr(tokenizer, "name_or_path", "some/model")
    with pytest.raises(ValueError, match=r"^messages must suit the chat template of some/model, got the roles"):
        prompt(tokenizer, MESSAGES, None)
