"""A tab of headless Chromium, as the page's tests use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.browser.chromium import Chromium, find_chromium

PROGRAM = find_chromium()


class Browser(Chromium):
    @property
    def problems(self) -> list[str]:
        """Whatever the page's console or the browser complained of."""
        return self.console

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, in which `$` finds by id."""
        return super().run(f"(() => {{ const $ = (id) => document.getElementById(id); return {script}; }})()")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def keep(self, name: str) -> None:
        """A screenshot into the folder that FOLOVLLM_SCREENSHOTS names, to be looked at; nowhere if it names none."""
        if folder := os.environ.get("FOLOVLLM_SCREENSHOTS"):
            self.screenshot(Path(folder) / f"{name}.png")
