"""One mark -> the Markdown that stands for it."""

from __future__ import annotations

from functools import cache

from milestones.site import api, bench_table, comments, file_list, vllm_map, way
from milestones.site.directives import Directive
from milestones.site.errors import DirectiveError
from milestones.site.live import box
from milestones.site.source import MODULE_DOC, ROOT, excerpt, parse
from milestones.site.vllm_files import vllm_files


def render_directive(directive: Directive, page: str) -> str:
    """What stands for one mark in the page at `page`, such as docs/en/m3/index.md."""
    lang = page.split("/")[1]
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
    if directive.kind == "map":
        return vllm_map.render(directive.words, vllm_files(), lang)
    if directive.kind == "files":
        return file_list.render(_single(directive), lang)
    if directive.kind == "live":
        return box.picture(_single(directive), page)
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
        return f'<details class="example" markdown="1"><summary>{title}</summary>\n\n{code}\n\n</details>'
    return code


def live_box(name: str, lang: str) -> str:
    """The HTML that the site has for `live NAME`."""
    return box.render(name, lang, _chinese(), _solutions(name[:2]) if "/" in name else {})


def shown_code(directive: Directive) -> str:
    """What a `code` mark shows, as the source has it."""
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
    """Where the code is from, and the code; in Chinese with Chinese comments."""
    text, names = shown_code(directive), directive.words[1:]
    is_doc = names == (MODULE_DOC,)
    shown = [f"`{name}`" for name in (path, *names) if name != MODULE_DOC]
    if lang == "zh":
        text = comments.laid_over(text, _chinese(), is_doc=is_doc)
    return f"{directive.options.get('title') or ' · '.join(shown)}\n\n{api.fence(text, 'text' if is_doc else 'python')}"


@cache
def _chinese() -> dict[str, str]:
    return comments.read(list(way.core_path(_read)), _read)
