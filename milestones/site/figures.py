"""A drawing in a page: one SVG file for both languages, put into the page as an image while it is built.

    docs/figures/m3/running.svg             <text x="8" y="20" data-zh="块表">block table</text>
    ::: figure m3/running caption="…"       <figure><img src="data:image/svg+xml;base64,…"><figcaption>…

The labels are English and each carries its Chinese. As an image the drawing is a document of its own: its ids, classes
and animations meet those of no other figure, and it needs no file beside the page.
"""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

from milestones.site import source
from milestones.site.errors import DirectiveError

FOLDER = "docs/figures"
_SVG = "http://www.w3.org/2000/svg"
_ZH = "data-zh"
_CJK = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
_PHRASE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z]{2,}")
_LABELS = {"text", "tspan", "title", "desc"}
_MOVING = {"animate", "animateMotion", "animateTransform", "set"}
ET.register_namespace("", _SVG)


def path_of(name: str) -> str:
    """`m3/running` -> `docs/figures/m3/running.svg`."""
    if not re.fullmatch(r"(?:m\d+/)?[a-z0-9-]+", name):
        raise DirectiveError(f"a figure's name looks like m3/running or house, got {name!r}")
    return f"{FOLDER}/{name}.svg"


def file_in(lang: str, name: str) -> str:
    """The file that holds the figure in one language where no builder is: the source itself is English."""
    path = path_of(name)
    return path if lang == "en" else f"{path.removesuffix('.svg')}.{lang}.svg"


def read(name: str) -> str:
    """The file's text; the error says which names there are."""
    path = source.ROOT / path_of(name)
    if not path.is_file():
        folder = source.ROOT / FOLDER
        known = ", ".join(sorted(_name(folder, file) for file in folder.rglob("*.svg"))) or "none"
        raise DirectiveError(f"no figure {name!r}: {path_of(name)} does not exist (there are: {known})")
    return path.read_text(encoding="utf-8")


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def figure(name: str, text: str, lang: str, caption: str) -> str:
    """The HTML that stands for one figure: a single line, which Markdown hands through."""
    svg, alt, width = drawing(name, text, lang)
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    below = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
    image = f'<img alt="{escape(alt)}" width="{width}" src="data:image/svg+xml;base64,{data}">'
    return f'<figure class="drawing">{image}{below}</figure>'


def drawing(name: str, text: str, lang: str) -> tuple[str, str, int]:
    """The SVG in one language, its title, and its natural width in pixels; what a page cannot take is an error."""
    path = path_of(name)
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


def inline(text: str) -> str:
    """A caption's Markdown: `code`, and $formulas$ as the formula script of the site wants them."""
    parts = re.split(r"(`[^`]+`|\$[^$]+\$)", text)
    return "".join(_inline(part) for part in parts)


def _inline(part: str) -> str:
    if part.startswith("`"):
        return f"<code>{escape(part[1:-1])}</code>"
    if part.startswith("$") and len(part) > 1:
        return f'<span class="arithmatex">\\({escape(part[1:-1])}\\)</span>'
    return escape(part, quote=False)
