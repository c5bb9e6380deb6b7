"""Imported first by every example, so that `folovllm` is the one in this tree.

Python looks for modules beside the script that it runs, in examples/, and then among what is installed: in a tree that
was checked out, that would be another milestone's package.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
