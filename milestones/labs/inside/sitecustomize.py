"""Makes `folovllm` come from the learner's tree and from nowhere else, in this process and in each one it starts.

Python imports this file by itself, at the start of every process that has its folder on PYTHONPATH. An installed
package, editable or not, is never asked.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class TreeFinder(MetaPathFinder):
    """Finds the package in one folder."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "folovllm":
            return None
        tree = os.environ["LAB_TREE"]
        spec = PathFinder.find_spec(name, [tree])
        if spec is None:
            raise ModuleNotFoundError(f"there is no package folovllm in {tree}", name=name)
        return spec


if "LAB_TREE" in os.environ:
    sys.meta_path.insert(0, TreeFinder())
