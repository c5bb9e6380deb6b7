"""Chat templates: they write what transformers lets them write, and end in time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from folovllm.entrypoints import template_process
from folovllm.entrypoints.chat_template import render_template
from tests.m1.byte_tokenizer import byte_tokenizer

MESSAGES = [
    {"role": "system", "content": " be kind "},
    {"role": "user", "content": "hi <b>"},
    {"role": "assistant", "content": "你好"},
    {"role": "user", "content": ""},
]
TEMPLATES = [
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] | trim }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + 1 %}"
    "{{ loop.index0 }}/{{ loop.length }}/{{ loop.revindex }}{% endfor %}{{ ns.n }}",
    "{% macro say(m, end='.') %}{{ m.role ~ ': ' ~ m.content }}{{ end }}{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}{{ say(m, end='!') }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m | tojson }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text | upper | length }}{{ text }}",
    "{% for m in messages recursive %}{{ m if m is string else loop([m.role, m.content]) }}{% endfor %}",
    "{{ messages | map(attribute='role') | join(',') }}{{ messages[1:] | length }}{{ '=' * 5 }}{{ 2 ** 10 }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[0].content.split(' ') }}",
    "{% if tools is none %}{{ none }}{{ true }}{{ undefined_name }}{% endif %}{{ dict(a=1) }}{{ 7 % 4 }}{{ 1.5 }}",
    "{% filter upper %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfilter %}{{ bos_token }}",
    "{% macro wrap() %}[{{ caller('in') }}]{% endmacro %}{% call(x) wrap() %}{{ x }}{% endcall %}",
]
ENDLESS = {
    "loops": "{% set r = range(99999) %}" + "{% for a in r %}" * 6 + "{% endfor %}" * 6,
    "a power": "{{ 7 ** 100000000 }}",
    "a power in a constant": "{% if 7 ** 100000000 %}{% endif %}",
    "lists that share": "{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x | tojson }}",
}
LARGE = {
    "doubling": "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "replacing": "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x.replace('a', 'aaaa') %}"
    "{% endfor %}",
    "a product": "{{ 'x' * 10 ** 12 }}",
    "a list's product": "{{ ([0] * 10 ** 12) | length }}",
    "padding": "{{ 'x'.ljust(10 ** 12) }}",
    "a number's format": "{{ '%01499999999d' % 1 }}",
    "indented": "{{ ('a\n' * 100000) | indent(100000000) }}",
    "batches": "{{ [1] | batch(1000000000, 'x') | list | length }}",
    "indented JSON": "{{ [1] | tojson(indent=1000000000) }}",
    "joined": "{{ range(99999) | join('x' * 99999) }}",
}
UNBOUNDED = {
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "it calls itself too often"),
    "text": ("{% for a in range(99999) %}some text {% endfor %}", "it writes more than 100000 characters"),
}


def render(tokenizer: Any, messages: list[dict[str, Any]], *, chat_template: str | None = None) -> str:
    return render_template(tokenizer, messages, {"add_generation_prompt": True, "chat_template": chat_template})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_writes_what_transformers_lets_it_write(tokenizer: Any, template: str) -> None:
    ask = {"tokenize": False, "add_generation_prompt": True, "chat_template": template}
    assert render(tokenizer, MESSAGES, chat_template=template) == tokenizer.apply_chat_template(MESSAGES, **ask)


@pytest.mark.parametrize("content", ["{{ m.content }}", "{{ m.content | trim }}"])
@pytest.mark.parametrize("begun", ["The answer", " The answer \n", "[x"])
def test_a_message_is_gone_on_with_where_transformers_goes_on(tokenizer: Any, content: str, begun: str) -> None:
    template = f"{{% for m in messages %}}<{content}>\n{{% endfor %}}"
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    ask = {"chat_template": template, "continue_final_message": True}
    theirs = tokenizer.apply_chat_template(messages, tokenize=False, **ask)
    assert render_template(tokenizer, messages, ask) == theirs
    with pytest.raises(ValueError, match="it leaves out the last message"):
        render_template(tokenizer, messages, {**ask, "chat_template": "{{ 'x' }}"})


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_ended(tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.1)  # none of them would end within the hour
    with pytest.raises(ValueError, match="chat_template must be a template that takes these messages: it takes more"):
        render(tokenizer, MESSAGES, chat_template=ENDLESS[name])


@pytest.mark.parametrize("name", LARGE)
def test_a_template_has_a_bound_of_memory(tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 600)
    with pytest.raises(ValueError, match="it takes more than 512 MiB|it writes more than|it ends the process"):
        render(tokenizer, MESSAGES, chat_template=LARGE[name])
    assert render(tokenizer, MESSAGES, chat_template="{{ 'the next' }}") == "the next"


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_template_has_a_bound_of_depth_and_text(tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_CHARS", 100_000)
    template, problem = UNBOUNDED[name]
    with pytest.raises(ValueError, match=problem):
        render(tokenizer, MESSAGES, chat_template=template)


def test_one_process_serves_one_template_after_the_other(tokenizer: Any) -> None:
    """Also after an error, and after someone has killed it."""
    render(tokenizer, MESSAGES, chat_template="a")
    (worker,) = template_process._idle
    with pytest.raises(ValueError, match="not these"):
        render(tokenizer, MESSAGES, chat_template="{{ raise_exception('not these') }}")
    assert template_process._idle == [worker]
    worker.process.kill()
    worker.process.wait()
    assert render(tokenizer, MESSAGES, chat_template="b") == "b"
    assert template_process._idle != [worker]


def test_the_process_of_templates_loads_no_torch() -> None:
    script = f"import runpy, sys; runpy.run_path({str(template_process._WORKER)!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "folovllm"} & set(loaded.stdout.split())


def test_the_error_names_the_template_of_the_model(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", UNBOUNDED["recursion"][0])
    monkeypatch.setattr(tokenizer, "name_or_path", "some/model")
    with pytest.raises(ValueError, match=r"messages must suit the chat template of some/model, got the roles"):
        render(tokenizer, MESSAGES)


def test_what_a_check_raises_ends_the_template_and_comes_through(tokenizer: Any) -> None:
    class GoneError(Exception):
        pass

    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise GoneError

    with pytest.raises(GoneError):
        render_template(tokenizer, MESSAGES, {"chat_template": ENDLESS["loops"]}, check=check)


def test_an_object_in_a_message_is_its_name_alone(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "x", "file": open}]
    assert render(tokenizer, messages, chat_template="{{ messages[0].file }}") == "<builtin_function_or_method>"
