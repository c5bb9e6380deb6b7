"""The drawings of the pages: an SVG file with English labels, each of which carries its Chinese.

    docs/figures/m3/running.svg        <text x="8" y="20" data-zh="块表">block table</text>
    docs/figures/m3/running.zh.svg     <text x="8" y="20">块表</text>        written by `make pages`
    a page in English or in Chinese    ![…](../../figures/m3/running.svg)    ![…](../../figures/m3/running.zh.svg)

On the site the drawing is in the page itself, as an image, so that its ids, classes and animations meet no others.
"""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path

from milestones.site import source
from milestones.site.errors import DirectiveError

FOLDER = "docs/figures"
PLOT = "plot-"
"""How the name of a plot begins, which is drawn in each language (bench_plot.py)."""
_SVG = "http://www.w3.org/2000/svg"
_ZH = "data-zh"
_CJK = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
_PHRASE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z]{2,}")
_LABELS = {"text", "tspan", "title", "desc"}
_MOVING = {"animate", "animateMotion", "animateTransform", "set"}
ET.register_namespace("", _SVG)


def file_in(lang: str, name: str) -> str:
    """The file that holds a drawing in one language: m3/running -> docs/figures/m3/running.zh.svg."""
    return f"{FOLDER}/{name}.svg" if lang == "en" else f"{FOLDER}/{name}.{lang}.svg"


def read(path: str) -> str:
    """The file's text; the error says which drawings there are."""
    file = source.ROOT / path
    if not file.is_file():
        folder = source.ROOT / FOLDER
        known = ", ".join(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.svg"))) or "none"
        raise DirectiveError(f"{path} does not exist (in {FOLDER} are: {known})")
    return file.read_text(encoding="utf-8")


def title(path: str) -> str:
    """What a screen reader says of the drawing at `path`, and a page where it cannot show it."""
    found = re.search(r"<title[^>]*>([^<]+)</title>", read(path))
    if found is None:
        raise DirectiveError(f"{path} needs a <title>")
    return unescape(found[1]).strip()


def chinese() -> Iterator[tuple[Path, str]]:
    """Each drawing's file in Chinese, and what belongs into it."""
    for path in sorted((source.ROOT / FOLDER).rglob("*.svg")):
        if ".zh" not in path.suffixes and not path.name.startswith(PLOT):
            name = path.relative_to(source.ROOT).as_posix()
            yield path.with_suffix(".zh.svg"), drawing(name, path.read_text(encoding="utf-8"), "zh")[0] + "\n"


def figure(path: str) -> str:
    """The HTML that the site has for the drawing at `path`: a single line, which Markdown hands through."""
    box = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
    svg = read(path)
    if not re.match(r"<svg[^>]* width=", svg):  # or the image would have another size
        svg = box.sub(r'\g<0> width="\1" height="\2"', svg, count=1)
    size = box.search(svg)
    if size is None:
        raise DirectiveError(f'{path} needs a viewBox="0 0 WIDTH HEIGHT"')
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    image = f'<img alt="{escape(title(path))}" width="{float(size[1]):.0f}" src="data:image/svg+xml;base64,{data}">'
    return f'<figure class="drawing">{image}</figure>'


def drawing(path: str, text: str, lang: str) -> tuple[str, str, int]:
    """The SVG in one language, its title, and its natural width in pixels; what a page cannot take is an error."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DirectiveError(f"{path} is not XML: {error}") from error
    box = (root.get("viewBox") or "").split()
    if root.tag != f"{{{_SVG}}}svg" or len(box) != 4:
        raise DirectiveError(f'{path} must be an <svg xmlns="{_SVG}"> with a viewBox="0 0 WIDTH HEIGHT"')
    title = root.find(f"{{{_SVG}}}title")
    if title is None or not (title.text or "").strip():
        raise DirectiveError(f"{path} needs a <title> as its first child: it is what a screen reader reads")
    _check(path, root, text)
    for element in root.iter():
        _speak(path, element, lang)
    root.set("width", box[2])
    root.set("height", box[3])
    return ET.tostring(root, encoding="unicode"), (title.text or "").strip(), round(float(box[2]))


def _check(path: str, root: ET.Element, text: str) -> None:
    tags = {element.tag.rpartition("}")[2] for element in root.iter() if isinstance(element.tag, str)}
    if forbidden := tags & {"script", "foreignObject", "image"}:
        raise DirectiveError(f"{path}: <{min(forbidden)}> does not work in an image, draw with shapes and text")
    if re.search(r"(?:href|url\()\s*=?\s*[\"']?\s*(?:https?:)?//|@import", text):
        raise DirectiveError(f"{path}: it asks another host for something, a figure brings all that it needs")
    if (tags & _MOVING or "@keyframes" in text) and "prefers-reduced-motion" not in text:
        raise DirectiveError(f"{path}: it moves, so its <style> needs an @media (prefers-reduced-motion: reduce)")


def _speak(path: str, element: ET.Element, lang: str) -> None:
    """Puts the words of `lang` into one element: its text, and whatever attribute has a data-zh-… of its own."""
    chinese = {key: element.attrib.pop(key) for key in list(element.attrib) if key.startswith(_ZH)}
    text = (element.text or "").strip()
    if element.tag.rpartition("}")[2] in _LABELS:
        if _CJK.search(text):
            raise DirectiveError(f'{path}: "{text}" is Chinese; the text is English, the Chinese stands in {_ZH}="…"')
        if _PHRASE.search(text) and _ZH not in chinese:
            raise DirectiveError(f'{path}: "{text}" has no {_ZH}="…" (the same words again, where it stays English)')
    if lang != "zh":
        return
    for key, value in chinese.items():
        if key == _ZH:
            element.text = value
        else:
            element.set(key.removeprefix(_ZH + "-"), value)
