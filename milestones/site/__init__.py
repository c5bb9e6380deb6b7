"""The site's own tooling: code and figures are included from the source, and both languages stay alike.

`include` is the Markdown extension that every build loads, `parity` the gate that compares docs/zh with
docs/en, and `python -m milestones.site` the command that runs the gate and the builds.
"""

from __future__ import annotations
