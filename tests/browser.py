"""Headless Chromium, driven over a pipe: pages are opened, scripts run in them, and screenshots are taken."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def required() -> str:
    """The executable. Without one, tests are skipped; where the variable CI is set, they fail."""
    found = executable()
    if found is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("needs Chromium: apt-get install chromium (`make test` does so as root)")
    return found


class Browser:
    """One page. Messages are JSON with a zero byte after each, on file descriptors 3 and 4."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]

        def descriptors() -> None:  # 3 and 4 may be taken by the other end: move both away first
            high = [os.dup2(one, number) for one, number in ((to_browser, 100), (from_browser, 101))]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [required(), *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=descriptors,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    @property
    def complaints(self) -> list[dict]:
        """Errors and warnings of the console, uncaught exceptions, and requests other than for the page itself."""
        self.run("0")
        return [
            event
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
            or (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))
        ]

    def screenshot(self, path: Path, *, width: int, dark: bool, height: int = 900, whole: bool = False) -> None:
        self.look(width=width, dark=dark, height=height)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def look(self, *, width: int, dark: bool, height: int = 900, media: str = "") -> None:
        """Set the size of the window, the theme and the medium."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
