"""Writes the glossary from its data: `python -m workshop.glossary_page`.

Both languages have the same headings in the same order under the same ids, so a link to #block-table works in either.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workshop.glossary import LANGS, Lang, Term, load_glossary

DOCS = Path(__file__).parents[1] / "docs"
TITLE = {"en": "# Glossary {#glossary}", "zh": "# 术语表 {#glossary}"}
INTRO = {
    "en": "Each term in a sentence or two. These are also the definitions that the embedded model learnt: ask it with "
    "`folovllm chat`.",
    "zh": "每条术语一两句话。其中的“词元”就是笔记正文里的 token。内置的小模型学的就是这些定义，可以用 "
    "`folovllm chat` 问它。",
}
ALSO = {"en": "Also: ", "zh": "也叫："}
IN_OTHER = {"en": "Chinese: ", "zh": "英文："}


def page(lang: Lang) -> str:
    """The page's Markdown."""
    glossary = load_glossary()
    lines = [TITLE[lang], "", INTRO[lang], ""]
    for key, titles in glossary.groups.items():
        lines += [f"## {titles[LANGS.index(lang)]} {{#{key}-terms}}", ""]
        for term in glossary.terms:
            if term.group == key:
                lines += [
                    f"### {heading(term, lang)} {{#{term.id}}}",
                    "",
                    term.answer(lang),
                    "",
                    f"*{_names(term, lang)}*",
                    "",
                ]
    lines += ["*workshop/glossary.toml → python -m workshop.glossary_page*", ""]
    return "\n".join(lines)


def heading(term: Term, lang: Lang) -> str:
    return term.names(lang)[0].bare


def _names(term: Term, lang: Lang) -> str:
    other: Lang = "zh" if lang == "en" else "en"
    own = [name.bare for name in term.names(lang)[1:] if lang == "en" or not name.bare.isascii()]
    parts = [IN_OTHER[lang] + term.names(other)[0].bare]
    if own:
        parts.append(ALSO[lang] + ("、" if lang == "zh" else ", ").join(own))
    return ("。" if lang == "zh" else ". ").join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.glossary_page", description=__doc__.split("\n")[0])
    parser.add_argument("--docs", type=Path, default=DOCS)
    folder = parser.parse_args().docs
    for lang in LANGS:
        path = folder / lang / "glossary.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(lang), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
