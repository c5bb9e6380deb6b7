"""Writes anew what programs make for the pages, and names the files that changed: figures, pictures of traces and
simulations, the benchmarks page, the glossary, the notebook. `make docs` fails if there are any.

    python -m workshop.redraw
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from milestones.site import bench_page
from milestones.site.source import ROOT
from workshop import (
    figures_m2,
    figures_m3,
    figures_m11,
    first_hour_notebook,
    glossary_page,
    running_example,
    see_it,
    simulate_figures,
    trace_pictures,
)
from workshop.example_picture import draw as draw_example
from workshop.figures.__main__ import FOLDER, drawn
from workshop.glossary import LANGS


def files() -> Iterator[tuple[Path, str]]:
    """What is written where."""
    for name, svg in drawn().items():
        yield FOLDER / name, svg
    for milestone, cards in (("m2", figures_m2.cards()), ("m3", figures_m3.cards()), ("m11", figures_m11.cards())):
        for name, card in cards.items():
            yield FOLDER / milestone / f"{name}.svg", str(card)
    for milestone, trace in running_example.stored().items():
        yield running_example.picture_file(milestone), draw_example(milestone, trace)
    example = see_it.trace_of_example()
    for lang in LANGS:
        yield ROOT / "docs" / lang / "see-it.svg", see_it.draw(example, lang)
        yield glossary_page.DOCS / lang / "glossary.md", glossary_page.page(lang)
    for name, figure in simulate_figures.PICTURES.items():
        rows = simulate_figures.stored(figure.data)["rows"]
        yield simulate_figures.picture_file(name), simulate_figures.draw(figure, rows)
    for name, picture in trace_pictures.PICTURES.items():
        yield trace_pictures.picture_file(name), trace_pictures.draw(picture)
    yield from bench_page.files().items()
    yield first_hour_notebook.NOTEBOOK, first_hour_notebook.notebook()


def main() -> int:
    changed = [(path, text) for path, text in files() if not path.is_file() or path.read_text("utf-8") != text]
    for path, text in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(f"{path.relative_to(ROOT)}: was not what its program makes, and is now")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
