"""Writes the glossary's pages from its data: `python -m workshop.glossary_page`.

    docs/{en,zh}/glossary.md          what a model computes: the model, text, sampling
    docs/{en,zh}/glossary-engine.md   what an engine does with it: memory, scheduling, kernels, serving

Both languages have the same headings in the same order under the same ids, so a link to #block-table works in either.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workshop.glossary import LANGS, Lang, Term, load_glossary

DOCS = Path(__file__).parents[1] / "docs"
# Page -> the groups of terms that it has.
PAGES = {
    "glossary": ["model", "text", "sampling"],
    "glossary-engine": ["memory", "scheduling", "kernels", "serving"],
}
TITLE = {
    "glossary": {"en": "# Glossary: the model {#glossary}", "zh": "# 术语表：模型 {#glossary}"},
    "glossary-engine": {"en": "# Glossary: the engine {#glossary-engine}", "zh": "# 术语表：引擎 {#glossary-engine}"},
}
INTRO = {
    "glossary": {
        "en": "What a model computes, each term in a sentence or two; what an engine does with it is on "
        "[a second page](glossary-engine.md). These are also the definitions that the embedded model learnt: ask it "
        "with `folovllm chat`.",
        "zh": "模型计算什么，每条术语一两句话；引擎拿它做什么，在[第二页](glossary-engine.md)。其中的“词元”就是笔记"
        "正文里的 token。内置的小模型学的就是这些定义，可以用 `folovllm chat` 问它。",
    },
    "glossary-engine": {
        "en": "What an engine does with a model. The terms of the model itself, of text and of sampling are on "
        "[the first page](glossary.md).",
        "zh": "引擎怎样用一个模型。模型本身、文本和采样的术语在[第一页](glossary.md)。",
    },
}
ALSO = {"en": "Also: ", "zh": "也叫："}
IN_OTHER = {"en": "Chinese: ", "zh": "英文："}


def page(name: str, lang: Lang) -> str:
    """The Markdown of one page."""
    glossary = load_glossary()
    lines = [TITLE[name][lang], "", INTRO[name][lang], ""]
    for key in PAGES[name]:
        titles = glossary.groups[key]
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
        for name in PAGES:
            path = folder / lang / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page(name, lang), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
