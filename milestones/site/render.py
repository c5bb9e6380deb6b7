"""One directive -> the Markdown that stands for it. Pure text: the build calls it, and so does the parity gate."""

from __future__ import annotations

from functools import cache

from milestones.site import api, bench_plot, bench_table, figures, vllm_map, way
from milestones.site.directives import Directive
from milestones.site.errors import DirectiveError
from milestones.site.source import MODULE_DOC, ROOT, SourceFile, excerpt, parse
from milestones.site.vllm_files import vllm_files


def render_directive(directive: Directive, lang: str = "en") -> str:
    """The Markdown that stands for one directive."""
    if directive.kind == "bench":
        name = _single(directive)
        if name == "*":
            return bench_table.all_tables(lang)
        options = directive.options
        return bench_table.table(
            bench_table.load(name),
            columns=options.get("columns", ""),
            where=options.get("where", ""),
            caption="nocaption" not in directive.flags,
            lang=lang,
        )
    if directive.kind == "plot":
        return bench_plot.plot(bench_table.load(_single(directive)), lang)
    if directive.kind == "map":
        return vllm_map.render(directive.words, vllm_files(), lang)
    if directive.kind == "figure":
        name = _single(directive)
        return figures.figure(name, figures.read(name), lang, directive.options.get("caption", ""))
    if directive.kind == "way":
        return way.render(_single(directive), lang, _read)
    if directive.kind == "exercise":
        return way.render_exercise(_single(directive), lang, _read)
    path, *names = directive.words
    source = parse(path, directive.milestone)
    if directive.kind == "api":
        if len(names) != 1:
            raise DirectiveError(f"api takes a path and one name, got {' '.join(directive.words)}")
        members = directive.options.get("members")
        return api.render(source, names[0], members.split(",") if members is not None else None)
    code = _code(directive, source, names)
    if directive.milestone and (title := way.folded(path, names, lang, _solutions(directive.milestone))):
        return "\n".join([f'??? example "{title}"', *(f"    {line}" if line else "" for line in code.splitlines())])
    return code


@cache
def _solutions(milestone: str) -> dict[tuple[str, str], int]:
    return way.solutions(milestone, _read)


def _read(path: str) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except OSError as error:
        raise DirectiveError(f"{path} does not exist") from error


def _single(directive: Directive) -> str:
    if len(directive.words) != 1:
        raise DirectiveError(f"{directive.kind} takes one name, got {' '.join(directive.words)}")
    return directive.words[0]


def _code(directive: Directive, source: SourceFile, names: list[str]) -> str:
    doc, head = "nodoc" not in directive.flags, "head" in directive.flags
    text = "\n\n".join(excerpt(source, n, doc=doc, head=head) for n in names) if names else source.text
    language = "text" if names == [MODULE_DOC] else "python"
    shown = [name for name in names if name != MODULE_DOC]
    title = directive.options.get("title") or " · ".join([source.name, *shown])
    return api.fence(text, f'{language} title="{title}"')
