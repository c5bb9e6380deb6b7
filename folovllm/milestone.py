"""Which milestone this tree is: `python -m milestones` writes the number anew in each tree that it makes.

The one line of the package that differs in every milestone, so it is not stored once for each of them. At the root it
is the newest one's. Code asks it one question only: does a field of the configuration wait for a later milestone?

vLLM: none
"""

from __future__ import annotations

MILESTONE = 6
