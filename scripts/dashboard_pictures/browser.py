"""A headless Chromium over its own pipe (Chrome DevTools Protocol): open a page, wait, photograph.

`chromium --screenshot` will not do: it photographs without having drawn frames, and what measures
itself (legends, and so every line chart) has no size until a frame was drawn.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTH = 1500
PATIENCE_S = 90.0

AS_THREE_AND_FOUR = """\
import fcntl, os, sys
held = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, each in zip((3, 4), held):
    os.dup2(each, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from 3 and writes to 4."""


class Browser:
    """One Chromium with one page."""

    def __init__(self, write: int, read: int) -> None:
        """Keep both ends; open an empty page."""
        self._write, self._read = write, os.fdopen(read, "rb", buffering=0)
        self._left, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Runtime.enable")

    def call(self, method: str, **words: Any) -> dict[str, Any]:
        """Ask for something; give the answer.

        Raises:
            RuntimeError: it was refused.
        """
        self._number += 1
        asked = {"id": self._number, "method": method, "params": words}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            heard = self._message()
            if heard.get("method") == "Runtime.exceptionThrown":
                self.said.append(str(heard["params"]["exceptionDetails"])[:500])
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                result: dict[str, Any] = heard["result"]
                return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = self._read.read(1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._left += more
        first, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def photograph(self, url: str, ready: str, out: Path) -> None:
        """Open a page, wait until an expression is true, and write a PNG of the whole page.

        Raises:
            RuntimeError: it was not ready in time.
        """
        self._sized(1000)
        self.call("Page.navigate", url=url)
        end_s = time.monotonic() + PATIENCE_S
        while not self.value(ready):
            if time.monotonic() > end_s:
                raise RuntimeError(f"{url} is not drawn: {self.said[-3:]}")
            time.sleep(0.2)
        height = int(self.value("document.documentElement.scrollHeight"))
        self._sized(height)
        time.sleep(2.0)
        picture = self.call("Page.captureScreenshot", format="png")
        out.write_bytes(base64.b64decode(picture["data"]))

    def _sized(self, height: int) -> None:
        size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run one; it has ended when the block has."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", AS_THREE_AND_FOUR, str(theirs_in), str(theirs_out)),
            *("chromium", *options, f"--user-data-dir={profile}"),
        ],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(20.0)
