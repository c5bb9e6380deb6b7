"""Write the figures, or say which differ."""

from __future__ import annotations

import sys
from pathlib import Path

from workshop.figures import m0, m1_model, m1_sampling, m4, m7, m8

FOLDER = Path(__file__).parents[2] / "docs" / "figures"


def drawn() -> dict[str, str]:
    """Path under docs/figures to the SVG's text."""
    return {**m0.figures(), **m1_model.figures(), **m1_sampling.figures(), **m4.figures(), **m7.figures(), **m8.figures()}


def stale() -> list[str]:
    """Paths whose file is not what would be written."""
    return [
        name for name, svg in drawn().items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != svg
    ]  # fmt: skip


def main() -> None:
    if "--check" in sys.argv[1:]:
        if names := stale():
            sys.exit("differ from what python -m workshop.figures draws: " + ", ".join(names))
        return
    for name, svg in drawn().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
