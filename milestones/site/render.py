"""One directive -> the Markdown that stands for it. Pure text: the build calls it, and so does the parity gate."""

from __future__ import annotations

from functools import cache

from milestones.site import api, bench_plot, bench_table, comments, figures, file_list, vllm_map, way
from milestones.site.directives import Directive
from milestones.site.errors import DirectiveError
from milestones.site.live import box
from milestones.site.source import MODULE_DOC, ROOT, excerpt, parse
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
    if directive.kind == "files":
        return file_list.render(_single(directive), lang)
    if directive.kind == "figure":
        name = _single(directive)
        return figures.figure(name, figures.read(name), lang, directive.options.get("caption", ""))
    if directive.kind == "live":
        name, caption = _single(directive), directive.options.get("caption", "")
        return box.render(name, lang, caption, _chinese(), _solutions(name[:2]) if "/" in name else {})
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
    code = _box(directive, source.name, lang)
    if directive.milestone and (title := way.folded(path, names, lang, _solutions(directive.milestone))):
        return "\n".join([f'??? example "{title}"', *_indented(code)])
    return code


def shown_code(directive: Directive) -> str:
    """What a `::: code` shows, as the source has it."""
    path, *names = directive.words
    source = parse(path, directive.milestone)
    doc, head = "nodoc" not in directive.flags, "head" in directive.flags
    return "\n\n".join(excerpt(source, n, doc=doc, head=head) for n in names) if names else source.text


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


def _box(directive: Directive, path: str, lang: str) -> str:
    """The box of a `::: code`; in Chinese with a second tab that has the original, where the two differ."""
    text, names = shown_code(directive), directive.words[1:]
    is_doc = names == (MODULE_DOC,)
    title = directive.options.get("title") or " · ".join([path, *(name for name in names if name != MODULE_DOC)])
    info = f'{"text" if is_doc else "python"} title="{title}"'
    laid = comments.laid_over(text, _chinese(), is_doc=is_doc) if lang == "zh" else text
    if laid == text:
        return api.fence(text, info)
    tabs = [('===! "中文"', laid), ('=== "原文"', text)]
    return "\n".join(line for tab, code in tabs for line in (tab, "", *_indented(api.fence(code, info)), ""))


def _indented(text: str) -> list[str]:
    return [f"    {line}" if line else "" for line in text.splitlines()]


@cache
def _chinese() -> dict[str, str]:
    return comments.read(list(way.core_path(_read)), _read)
