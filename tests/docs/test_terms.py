"""One word for one thing: no page says what docs/terms.toml has another word for."""

from __future__ import annotations

import tomllib

import pytest

from milestones.site import terms
from milestones.site.source import ROOT

TERMS = tomllib.loads((ROOT / terms.TERMS).read_text(encoding="utf-8"))


def test_pages_captions_figures_exercises_and_code_boxes_are_all_looked_at(tmp_path):
    for name, text in {
        "docs/terms.toml": '[en]\nfoo = "bar"\n[zh]\n"富" = "吧"\n',
        "docs/zh/m0/page.md": '# 富\n\n<!-- bench a columns="a=富" -->\n\n| 富 |\n\n<!-- end -->\n',
        "README.zh.md": "富",
        "README.md": "foo",
        "milestones/labs/m0/01-a/zh.md": "富 `富`",
        "docs/figures/a.svg": '<text data-zh="富">foo</text>',
        "docs/zh/m0/b.svg": "<text>富</text>",
        "docs/comments.zh/m0.toml": "[[text]]\nen = 'foo'\nzh = '富'\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert sorted(terms.problems(tmp_path)) == [
        "README.md:1: foo (bar)",
        "README.zh.md:1: 富 (吧)",
        "docs/comments.zh/m0.toml:1: 富 (吧)",
        "docs/figures/a.svg:1: foo (bar)",
        "docs/figures/a.svg:1: 富 (吧)",
        "docs/zh/m0/b.svg:1: 富 (吧)",
        "docs/zh/m0/page.md:1: 富 (吧)",
        "docs/zh/m0/page.md:3: 富 (吧)",
        "milestones/labs/m0/01-a/zh.md:1: 富 (吧)",
    ]


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("en", "Nobody waits.", 1),
        ("en", "`nobody` and [it](nobody.md)\n```\nnobody\n```", 0),
        ("en", "A sequence computes the same tokens in any company.", 1),
        ("en", "Quantization and a quantised layer", 1),
        ("zh", "首 token 的时间，第一个 token。", 2),
        ("zh", "首个 token、查询头、预填充、`CUDA Graph`", 0),
        ("zh", "预填阶段抽样一个 token，用 CUDA Graph。", 3),
        ("zh", "条块、平衡点、批次无关、取整、4 比特、四位、缩放因子、得分、还原器", 9),
        ("zh", "对话模板、停止串、叠放、短向量、抽取、词元、剖析、GPU 内存、空块、竞速、张量核心、3 毫秒", 12),
        ("zh", "面板、三条块号、拐点、批不变、舍入、向上取整、4 位、缩放系数、分数、使得分开、反分词器", 0),
        ("zh", "聊天模板、停止字符串、堆叠、潜在向量、采样、信息抽取、token、性能分析、显存、CPU 内存", 0),
        ("zh", "```mermaid\na[停止串]\n```\n```text\n停止串\n```", 1),
        ("zh", "## 请求怎样到来\n## 动手算\n## 现在你会了", 3),
        ("zh", "## 请求怎么到来\n## 队伍会怎样\n这要看怎样到来。", 0),
    ],
)
def test_the_gate_finds_what_it_looks_for_in_prose_alone(language, text, count):
    found = [pair for _, line in terms.prose(text) for pair in terms.said(line, TERMS[language])]
    assert len(found) == count, found
