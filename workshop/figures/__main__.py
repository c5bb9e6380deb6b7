"""Write the figures."""

from __future__ import annotations

from pathlib import Path

from workshop.figures import m0, m1_model, m1_sampling, m4, m7, m8, m10

FOLDER = Path(__file__).parents[2] / "docs" / "figures"


def drawn() -> dict[str, str]:
    """Path under docs/figures to the SVG's text."""
    modules = (m0, m1_model, m1_sampling, m4, m7, m8, m10)
    return {name: svg for module in modules for name, svg in module.figures().items()}


def main() -> None:
    for name, svg in drawn().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
