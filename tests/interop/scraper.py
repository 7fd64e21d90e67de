"""`uxfrm web`, and Debian's Prometheus that scrapes it, both in one network namespace."""

import contextlib
import json
import pathlib
import re
import secrets
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import patience
from gateway import CONTROLLED

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
NOBODY = 65534
READABLE = CONTROLLED + f"\n[status]\ngroup = {NOBODY}\n"
WEB, PROMETHEUS = 9433, 9090


class Program(contextlib.ExitStack):
    """A program in a namespace; ended with SIGTERM."""

    def __init__(self, namespace, *words):
        super().__init__()
        self.namespace = namespace
        self._output = self.enter_context(tempfile.TemporaryFile("w+"))
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace.name, *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output)
        self.callback(self._end)

    @property
    def pid(self):
        return self._process.pid

    def _end(self):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience.SECONDS)
        finally:
            self._process.kill()

    def said(self):
        assert self._process.poll() is None, f"it has ended: {self._text()}"
        return self._text()

    def _text(self):
        self._output.seek(0)
        return self._output.read()

    def fetch(self, port, path, **headers):
        """Status, headers and text of an answer; waits until somebody listens."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        # No proxy of the environment stands between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def answered():
            self.said()
            try:
                with self.namespace.entered(), opener.open(request, timeout=patience.SECONDS) as answer:
                    return answer.status, answer.headers, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.headers, error.read().decode()
            except urllib.error.URLError:
                return None

        return patience.wait_for(answered, lambda: f"no answer: {self.said()}")


class Web(Program):
    """`uxfrm web` on loopback, with a token."""

    def __init__(self, binary, namespace, directory):
        self.token = secrets.token_hex(32)
        self.token_file = pathlib.Path(directory) / "web.token"
        self.token_file.write_text(self.token)
        self.token_file.chmod(0o600)
        super().__init__(namespace, binary, "web", "--user", "nobody", "--listen", f"127.0.0.1:{WEB}", "--token-file", self.token_file)

    def page(self, accept="text/plain;version=0.0.4", query=""):
        """The headers and text of `/metrics`."""
        status, headers, text = self.fetch(WEB, f"/metrics{query}", Accept=accept, Authorization=f"Bearer {self.token}")
        assert status == 200, (status, text)
        return headers, text

    def seconds(self, query=""):
        """How long a page takes, and the page."""
        begun = time.monotonic()
        _, text = self.page(query=query)
        return time.monotonic() - begun, text


class Prometheus(Program):
    """Scrapes each second; alerts fire after a second or two."""

    def __init__(self, namespace, token_file):
        directory = tempfile.TemporaryDirectory(prefix="uxfrm-prometheus-")
        place = pathlib.Path(directory.name)
        alerts = (EXAMPLES / "prometheus/uxfrm-alerts.yml").read_text()
        (place / "uxfrm-alerts.yml").write_text(re.sub(r"(?m)^( +for: ).*$", r"\g<1>2s", alerts))
        example = (EXAMPLES / "prometheus/prometheus.yml").read_text()
        settings = example.replace("/etc/prometheus/uxfrm.token", str(token_file)).replace("15s", "1s")
        (place / "prometheus.yml").write_text("global:\n  evaluation_interval: 1s\n" + settings)
        super().__init__(
            namespace, "prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data",
            f"--web.listen-address=127.0.0.1:{PROMETHEUS}", "--log.level=warn")
        self.callback(directory.cleanup)

    def ask(self, path, **parameters):
        status, _, text = self.fetch(PROMETHEUS, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        # Until it has read what it has on the disk.
        return json.loads(text)["data"] if status == 200 else None

    def value(self, expression):
        """The value of the one series of an expression; nothing where there is none yet."""
        found = self.ask("query", query=expression)
        results = found["result"] if found else []
        assert len(results) <= 1, results
        return float(results[0]["value"][1]) if results else None

    def firing(self, name):
        """The alerts of this name that fire."""
        found = self.ask("alerts")
        alerts = found["alerts"] if found else []
        return [alert for alert in alerts if alert["labels"]["alertname"] == name and alert["state"] == "firing"]


def series(page):
    """Names and values of a page, and how often each name comes."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    counts = {}
    for line in lines:
        name = re.match(r"[a-z0-9_]+", line)[0]
        counts[name] = counts.get(name, 0) + 1
    return dict(line.rsplit(" ", 1) for line in lines), counts
