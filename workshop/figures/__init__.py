"""Draws the figures of the notes that hold computed numbers: bars, trees, tables of weights.

    python -m workshop.figures    writes docs/figures/mK/NAME.svg

One SVG for both languages: English in the text, Chinese in `data-zh` (docs/README.md).
"""
