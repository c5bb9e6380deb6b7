"""Writes the glossary from its data: `python -m workshop.glossary_page`.

Both languages have the same headings in the same order under the same ids, so a link to #block-table works in either.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from workshop.glossary import LANGS, Lang, Term, load_glossary

DOCS = Path(__file__).parents[1] / "docs"
TITLE = {"en": '<a id="glossary"></a>\n# Glossary', "zh": '<a id="glossary"></a>\n# 术语表'}
INTRO = {
    "en": "Each term in a sentence or two. These are also the definitions that the embedded model learnt, all but "
    "{later}: ask it with `folovllm chat`.",
    "zh": "每条术语一两句话。内置的小模型学的就是这些定义（{later}除外），可以用 `folovllm chat` 问它。",
}
OTHERWISE: dict[Lang, dict[str, str]] = {
    "en": {"quantization": "quantisation", "Quantization": "Quantisation", "when nobody uses": "when no sequence uses"},
    "zh": {
        "第一个词元": "首个 token ",
        "首词元": "首个 token ",
        "词元": " token ",
        " query 头": "查询头",
        "对话模板": "聊天模板",
        "束搜索": " beam search ",
        "抽取": "采样",
        "语言模型头": "输出头",
        "和一个路由器": "和一个路由",
        "比特": "位",
        " key 和 value": " K/V",
    },
}
"""What the embedded model has learnt to say, and what the notes say (docs/terms.toml)."""
ALSO = {"en": "Also: ", "zh": "也叫："}
IN_OTHER = {"en": "Chinese: ", "zh": "英文："}


def page(lang: Lang) -> str:
    """The page's Markdown."""
    glossary = load_glossary()
    later = (", " if lang == "en" else "、").join(heading(term, lang) for term in glossary.later)
    lines = [TITLE[lang], "", INTRO[lang].format(later=later), ""]
    for key, titles in glossary.groups.items():
        lines += [f'<a id="{key}-terms"></a>', f"## {as_notes(titles[LANGS.index(lang)], lang)}", ""]
        for term in [*glossary.terms, *glossary.later]:
            if term.group == key:
                lines += [
                    f'<a id="{term.id}"></a>',
                    f"### {heading(term, lang)}",
                    "",
                    as_notes(term.answer(lang), lang),
                    "",
                    f"*{_names(term, lang)}*",
                    "",
                ]
    lines += ["*workshop/glossary.toml → python -m workshop.glossary_page*", ""]
    return "\n".join(lines)


def as_notes(text: str, lang: Lang) -> str:
    """`text` in the words of the notes; a Latin word has a space on each side that is no mark or end."""
    for learnt, noted in OTHERWISE[lang].items():
        text = text.replace(learnt, noted)
    text = re.sub(r" {2,}", " ", text)
    return re.sub(r" ?([，。；：、（）“”？]) ?", r"\1", text).strip()


def heading(term: Term, lang: Lang) -> str:
    return as_notes(term.names(lang)[0].bare, lang)


def _names(term: Term, lang: Lang) -> str:
    other: Lang = "zh" if lang == "en" else "en"
    names = [name.bare for name in term.names(lang)]
    own = [name for name in names[1:] if lang == "en" or not name.isascii()]
    if (shown := heading(term, lang)) != names[0]:
        own = [names[0], *(name for name in own if name != shown)]
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
