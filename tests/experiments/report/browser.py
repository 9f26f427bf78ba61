"""A small driver of headless Chromium over its debugging pipe: open pages, evaluate, press keys, take screenshots."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
REASON = f"none of {', '.join(NAMES)} is on the PATH"
_OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--no-sandbox",
    "--no-first-run",
    "--disable-extensions",
    "--hide-scrollbars",
)


# Chromium reads from descriptor 3 and writes to 4, which may be in use: both pipes are moved to higher numbers first.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 64) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page; ``messages`` collects the errors and console messages of all pages opened."""

    def __init__(self, folder, timeout=120.0):
        self.timeout, self.count, self.messages, self.buffer = timeout, 0, [], b""
        its_input, self.write = os.pipe()
        self.read, its_output = os.pipe()
        options = (*_OPTIONS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank")
        command = [sys.executable, "-c", _START, str(its_input), str(its_output), CHROMIUM, *options]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(its_input, its_output), **silent)
        os.close(its_input)
        os.close(its_output)
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session = None
        self.call("Browser.close")
        self.process.wait(self.timeout)
        os.close(self.write)
        os.close(self.read)

    def _receive(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                raise TimeoutError(f"Chromium did not answer within {self.timeout} s")
            part = os.read(self.read, 1 << 20)
            if not part:
                raise ConnectionError("Chromium ended")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        found = json.loads(message)
        if found.get("method") == "Runtime.exceptionThrown":
            self.messages.append(found["params"]["exceptionDetails"]["text"])
        elif found.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(found["params"]["args"]))
        elif found.get("method") == "Log.entryAdded":
            self.messages.append(found["params"]["entry"]["text"])
        return found

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while (found := self._receive(deadline)).get("id") != self.count:
            continue
        assert "error" not in found, found["error"]
        return found["result"]

    def open(self, path, *, width, height=900, dark=False):
        """Load a file in a window of this width."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + self.timeout
        while self._receive(deadline).get("method") != "Page.loadEventFired":
            continue

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key):
        """Press and release a key."""
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path, whole=True):
        """Write a PNG of the whole page, or of the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        path.write_bytes(base64.b64decode(found["data"]))
