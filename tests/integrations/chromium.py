"""A Chromium without a window, driven through its DevTools protocol over two pipes: no port, no driver, no package of Python."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)


class Chromium:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="trireme_chromium_")
        commands, self.to = os.pipe()
        self.replies, answers = os.pipe()
        options = ["--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
                   "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self.profile}", "--remote-debugging-pipe"]
        if os.getuid() == 0:
            options.append("--no-sandbox")  # it refuses to start as root otherwise
        # Descriptors 3 and 4 are the protocol's.
        start = f'exec 3<&{commands} 4>&{answers}; exec "$@"'
        # A folder of its own for all that it keeps in the user's home.
        environment = {**os.environ, "HOME": self.profile, "XDG_CONFIG_HOME": self.profile, "XDG_CACHE_HOME": self.profile}
        with open(os.path.join(self.profile, "chromium.log"), "w") as log:
            self.process = subprocess.Popen(["bash", "-c", start, "bash", PROGRAM, *options, "about:blank"], pass_fds=(commands, answers), env=environment,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", seconds=10)
            self.process.wait(20)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, 9)
                self.process.wait()
            os.close(self.to)
            os.close(self.replies)
            shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.replies], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError("Chromium does not answer\n" + self.log())
            read = os.read(self.replies, 1 << 20)
            if not read:
                raise RuntimeError("Chromium has ended\n" + self.log())
            self.buffer += read
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def log(self):
        with open(os.path.join(self.profile, "chromium.log"), errors="replace") as file:
            return file.read()[-2000:]

    def call(self, method, seconds=120, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            message = self._message(deadline)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression[:80]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path, width, scheme, height=900):
        """The page in a window of this width, "light" or "dark", when it is loaded and drawn. Forgets what was said of the page before."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        deadline = time.monotonic() + 120
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            message = self._message(deadline)
            if "method" in message:
                self.events.append(message)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def complaints(self):
        """Errors and warnings of the console, exceptions, and requests for anything but the page itself."""
        found = []
        for event in self.events:
            method, parameters = event["method"], event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(parameters["args"])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"])
            elif method == "Network.requestWillBeSent" and parameters["request"]["url"] != parameters["documentURL"]:
                found.append("it asks for " + parameters["request"]["url"])
        return found

    def move_pointer(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path):
        """Of the page from top to end."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(image))
