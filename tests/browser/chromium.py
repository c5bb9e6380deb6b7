"""Headless Chromium by its own protocol over a pipe: no driver, no port, no package.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page. `with Chromium() as page: page.open(path)`"""

    def __init__(self, width: int = 1440, height: int = 900) -> None:
        self.size = width, height
        self.console: list[str] = []  # errors, and what the policy refused
        self.requests: list[str] = []

    def __enter__(self) -> Chromium:
        program = find_chromium()
        if program is None:
            raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
        self._folder = tempfile.TemporaryDirectory(prefix="folovllm-chromium-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place_pipes() -> None:  # the browser reads at 3 and writes at 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        options += ["--hide-scrollbars", "--disable-dev-shm-usage", "--lang=en-US"]
        options += [f"--user-data-dir={self._folder.name}"]
        self._browser = subprocess.Popen(
            [program, *options, "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=place_pipes,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session = b"", 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._browser.kill()
        self._browser.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has gone")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Page.javascriptDialogOpening":
            self.console.append(f"dialog: {params['message']}")

    def resize(self, width: int, height: int) -> None:
        self.size = width, height
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, place: Path | str, fragment: str = "") -> None:
        """Load a file or a URL anew, and wait until it is drawn."""
        url = place if isinstance(place, str) else place.resolve().as_uri()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url + (f"#{fragment}" if fragment else ""))
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            pass
        self.frames()

    def run(self, script: str) -> Any:
        """What an expression comes to; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", script))
        return result["result"].get("value")

    def frames(self, count: int = 2) -> None:
        for _ in range(count):
            self.run("new Promise(requestAnimationFrame)")

    def press(self, key: str, *, shift: bool = False) -> None:
        more = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **more)
        self.frames()

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.frames()

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.frames()

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
