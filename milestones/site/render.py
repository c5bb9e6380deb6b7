"""One directive -> the Markdown that stands for it. Pure text: the build calls it, and so does the parity gate."""

from __future__ import annotations

from milestones.site import api, bench_plot, bench_table, figures, vllm_map
from milestones.site.directives import Directive
from milestones.site.errors import DirectiveError
from milestones.site.source import MODULE_DOC, SourceFile, excerpt, parse
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
    path, *names = directive.words
    source = parse(path, directive.milestone)
    if directive.kind == "api":
        if len(names) != 1:
            raise DirectiveError(f"api takes a path and one name, got {' '.join(directive.words)}")
        members = directive.options.get("members")
        return api.render(source, names[0], members.split(",") if members is not None else None)
    return _code(directive, source, names)


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
