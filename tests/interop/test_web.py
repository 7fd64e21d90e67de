"""`uxfrm web`: who may ask, what they are told, what the process is left with, and that no gateway,
slow client or flood of requests ends it."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32")
NOBODY, READERS = 65534, 64998
READABLE = CONTROLLED + f"\n[status]\ngroup = {NOBODY}\n"
TOKEN = "0123456789abcdef" * 3
PORT = 8080
SCHEMATHESIS = "schemathesis==4.32.5"
PEERS = 100_000
ASKS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(b"GET /api/v1/counters HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(connection.makefile().read())
"""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=2 * patience.SECONDS)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Web:
    """A running `uxfrm web`."""

    def __init__(self, uxfrm, namespace, directory, *options):
        self.namespace, self.socket = namespace, directory / "web.sock"
        self._log = open(directory / "web.log", "w+")
        command = ["ip", "netns", "exec", namespace.name, str(uxfrm), "web", "--user", "nobody", *options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def wait_until_ready(self, connect):
        def answers():
            assert self._process.poll() is None, self.log()
            with contextlib.suppress(OSError):
                return self.ask("/healthz", connection=connect())[0] == 200

        patience.wait_for(answers, self.log)
        return self

    @property
    def pid(self):
        return self._process.pid

    def unix(self):
        return UnixConnection(self.socket)

    def tcp(self):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=2 * patience.SECONDS)
        with self.namespace.entered():
            connection.connect()
        return connection

    def ask(self, path, headers=(), method="GET", body=None, connection=None):
        """Status, header fields, and the document or text."""
        with contextlib.closing(connection or self.unix()) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, answer.headers, json.loads(text) if is_json else text.decode()

    def document(self, path):
        status, _, document = self.ask(f"/api/v1/{path}")
        assert status == 200, document
        return document

    def close(self):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(patience.SECONDS) == 0, self.log()
        self._log.close()


@pytest.fixture
def gateway(uxfrm, network):
    made = Gateway(uxfrm, network.left)
    yield made
    made.close()


@pytest.fixture
def web(uxfrm, network, tmp_path):
    made = Web(uxfrm, network.left, tmp_path, "--socket", str(tmp_path / "web.sock"))
    made.wait_until_ready(made.unix)
    yield made
    made.close()


@pytest.fixture
def tcp(uxfrm, network, tmp_path):
    """One with a token on a loopback address."""
    made = Web(uxfrm, network.left, tmp_path, "--listen", f"127.0.0.1:{PORT}", "--token-file", str(token(tmp_path)))
    made.wait_until_ready(made.tcp)
    yield made
    made.close()


def token(directory, text=TOKEN, mode=0o600):
    path = directory / "token"
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def said(gateway, *words, check=True):
    return json.loads(gateway.namespace.run(str(gateway._binary), *words, check=check))


def without_times(document):
    """Times and counts of seconds go on."""
    if isinstance(document, dict):
        return {name: without_times(value) for name, value in document.items() if name not in ("at", "age_seconds") and "seconds" not in name}
    return [without_times(value) for value in document] if isinstance(document, list) else document


def taken(explanation, stage):
    """Takes the steps of a stage out of an explanation."""
    found = [step for step in explanation["steps"] if step["stage"] == stage]
    explanation["steps"] = [step for step in explanation["steps"] if step["stage"] != stage]
    return found


def test_documents_are_those_of_the_commands(network, gateway, web):
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    told = web.document("status")
    assert without_times(told) == without_times(said(gateway, "status", "-j"))
    assert told["gateway"]["pid"] == gateway.pid and len(told["tunnels"]) == 1
    assert web.document("status?peer=203.0.113.7")["tunnels"] == []
    assert web.document("counters")["kernel"] == said(gateway, "stat", "-j")
    for words, parameters in (
        (f"{HERE.inner[4]} {THERE.inner[4]} udp 53", f"source={HERE.inner[4]}&destination={THERE.inner[4]}&protocol=17&destination_port=53"),
        (f"{THERE.inner[4]} {HERE.inner[4]} dir in spi 0x1000", f"source={THERE.inner[4]}&destination={HERE.inner[4]}&way=in&spi=0x1000"),
        (f"{HERE.inner[4]} 198.51.100.1", f"source={HERE.inner[4]}&destination=198.51.100.1"),
    ):
        told, printed = web.document(f"why?{parameters}"), said(gateway, "why", "-j", *words.split(), check=False)
        # Without a capability nobody may read the packet filter: a reminder is all that is told.
        assert all("may still drop it" in step["text"] for step in taken(told, "own filter")), told
        assert taken(printed, "own filter") == [] or " dir in " in words
        assert told == printed, words
    stages = [step["stage"] for step in web.document(f"why?source={HERE.inner[4]}&destination={THERE.inner[4]}")["steps"]]
    assert stages[0] == "route" and "way out" in stages, "the host's own steps"
    assert web.ask("/api/v1/why?drop=1000")[0] == 404
    assert web.document("drop-tallies?by=sa") | {"at": 0} == {"at": 0, "tallies": [], "tallies_total": 0}
    status, _, problem = web.ask("/api/v1/drops?reason=bad_weather")
    assert status == 400 and "bad_weather" in problem["detail"], problem


def test_the_process_keeps_nothing(web):
    facts = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{web.pid}/status").read_text().splitlines() if ":\t" in line)
    assert facts["Uid"].split() == [str(NOBODY)] * 4 and facts["Gid"].split() == [str(NOBODY)] * 4
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts[kind], 16) == 0, (kind, facts[kind])
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert os.stat(f"/proc/{web.pid}/mem").st_uid == 0, "it is not dumpable"
    assert set(facts["Groups"].split()) <= {str(NOBODY)}


def test_the_socket_is_its_groups(uxfrm, network, tmp_path, gateway):
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    os.chmod(tmp_path, 0o755)
    path = pathlib.Path("/run") / f"uxfrm-test-{os.getpid()}.sock"
    made = Web(uxfrm, network.left, tmp_path, "--socket", str(path), "--group", str(READERS))
    made.socket = path
    try:
        made.wait_until_ready(made.unix)
        assert (path.stat().st_mode & 0o7777, path.stat().st_gid) == (0o660, READERS)
        asks = ["/usr/bin/python3", "-c", ASKS, str(path)]
        for group, may in ((READERS, True), (NOBODY, False)):
            before = ["setpriv", "--reuid", str(NOBODY), "--regid", str(group), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
            done = subprocess.run([*before, *asks], capture_output=True, text=True)
            expected = (0, '"kernel"') if may else (1, "PermissionError")
            assert done.returncode == expected[0] and expected[1] in done.stdout + done.stderr, done
    finally:
        made.close()
        path.unlink()


def test_a_loopback_address_needs_the_token(tcp, gateway):
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for headers, status in (
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN[1:]}"}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}x"}, 401),
        (bearer, 200),
        (bearer | {"Host": f"localhost:{PORT}"}, 200),
        (bearer | {"Host": "localhost"}, 421),
        (bearer | {"Host": f"evil.example:{PORT}"}, 421),
    ):
        assert tcp.ask("/api/v1/status", headers, connection=tcp.tcp())[0] == status, headers
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, fields, _ = tcp.ask("/login", form, "POST", f"token={TOKEN}", connection=tcp.tcp())
    assert (status, fields["location"]) == (303, "/")
    cookie = fields["set-cookie"].split(";")[0]
    assert tcp.ask("/api/v1/counters", {"Cookie": cookie}, connection=tcp.tcp())[0] == 200
    assert tcp.ask("/login", form, "POST", f"token={TOKEN[::-1]}", connection=tcp.tcp())[0] == 401
    assert TOKEN not in tcp.log()


def test_what_it_does_not_start_with(uxfrm, tmp_path):
    def refused(*options):
        done = subprocess.run([uxfrm, "web", *options], capture_output=True, text=True, timeout=patience.SECONDS)
        assert done.returncode != 0
        return done.stderr

    right = str(token(tmp_path))
    own = ("--socket", str(tmp_path / "web.sock"))
    assert "no loopback address" in refused("--listen", "0.0.0.0:0", "--token-file", right)
    assert "--token-file" in refused("--listen", "127.0.0.1:0")
    assert "root does not serve" in refused(*own, "--user", "root")
    assert "useradd" in refused(*own, "--user", "no-such-user")
    assert "groupadd" in refused(*own, "--group", "no-such-group")
    assert "openssl rand" in refused(*own, "--token-file", str(token(tmp_path, TOKEN[:31])))
    assert "chmod 0600" in refused(*own, "--token-file", str(token(tmp_path, mode=0o644)))


def test_systemd_hands_a_socket_over(uxfrm, network, tmp_path):
    path = tmp_path / "handed.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        script = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
        command = ["ip", "netns", "exec", network.left.name, "sh", "-c", script, "sh", str(uxfrm), "web", "--user", "nobody"]
        process = subprocess.Popen(command, preexec_fn=lambda: os.dup2(listener.fileno(), 3), pass_fds=[3])
    try:
        with contextlib.closing(UnixConnection(path)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
    finally:
        process.terminate()
        assert process.wait(patience.SECONDS) == 0


class Listener(threading.Thread):
    """Reads `/api/v1/events` until it is closed."""

    def __init__(self, web):
        super().__init__(daemon=True)
        self._connection = web.unix()
        self._connection.request("GET", "/api/v1/events")
        self._answer = self._connection.getresponse()
        assert self._answer.getheader("content-type") == "text/event-stream"
        self.events = []
        self.start()

    def run(self):
        name = None
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            while line := self._answer.readline():
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    self.events.append((name, json.loads(value)))

    def wait_for(self, name, **fields):
        def heard():
            return next((data for kind, data in self.events if kind == name and fields.items() <= data.items()), None)

        return patience.wait_for(heard, lambda: f"{name} {fields} in {self.events}")

    def close(self):
        self._connection.sock.shutdown(socket.SHUT_RDWR)


def test_a_gateway_that_goes_comes_and_is_replaced(network, gateway, web):
    status, fields, problem = web.ask("/api/v1/status")
    assert (status, fields["content-type"], fields["retry-after"]) == (503, "application/problem+json", "1")
    assert problem["title"] == "No gateway answers" and "systemctl start uxfrm" in problem["next"]
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    listener = Listener(web)
    beat = listener.wait_for("heartbeat")
    assert beat["totals"]["tunnels"] == 1
    first = gateway.pid
    gateway.upgrade()
    second = listener.wait_for("gateway", kind="replaced")["pid"]
    assert second == gateway.pid != first
    assert web.document("status")["gateway"]["pid"] == second
    gateway.stop()
    listener.wait_for("gateway", kind="went")
    assert web.ask("/api/v1/counters")[0] == 503
    gateway.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    status, _, problem = patience.wait_for(lambda: (answer := web.ask("/api/v1/drops")) and "group" in answer[2]["next"] and answer)
    assert status == 503, "a gateway that does not let it ask"
    gateway.stop()
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    listener.wait_for("gateway", kind="came", pid=gateway.pid)
    assert web.document("status")["totals"]["tunnels"] == 1
    listener.close()


def test_drops_and_health_are_events(network, gateway, web):
    elsewhere = f"xfrm policy add src {HERE.inner[4]}/32 dst 10.7.0.1/32 dir out tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 9 mode tunnel"
    gateway.start([*PROTECTED.lines(HERE, THERE), elsewhere], more=READABLE)
    listener = Listener(web)
    listener.wait_for("heartbeat")
    network.left.run("ip", "route", "replace", "10.7.0.1/32", "dev", "lo")

    def dropped():
        with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((HERE.inner[4], 0))
            sender.sendto(b"?", ("10.7.0.1", 9))
        time.sleep(0.2)
        return [data for kind, data in listener.events if kind == "drop"]

    record = patience.wait_for(dropped)[0]
    assert (record["reason"], record["flow"]["destination"]) == ("out_no_state", "10.7.0.1")
    assert "head" not in record, "bytes of packets are not told"
    explained = web.document(f"why?drop={record['number']}")
    assert explained["verdict"] == "was dropped: out_no_state" and explained["drop"]["next"], explained
    assert explained == said(gateway, "why", "-j", "--drop", str(record["number"]), check=False)
    assert [known["number"] for known in web.document(f"drops?from={record['number']}")["records"]][0] == record["number"]
    gateway.ip(f"xfrm state delete src {HERE.outer[4]} dst {THERE.outer[4]} proto esp spi 0x2000")
    changed = listener.wait_for("tunnel", reqid=1, health="down")
    assert changed["before"] == "idle" and "no state fits" in changed["explanation"]
    listener.close()


def test_slow_clients_hold_up_nobody(network, gateway, web):
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    with contextlib.ExitStack() as open_sockets:
        for number in range(100):
            slow = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            slow.connect(str(web.socket))
            # Some say nothing, some never end what they say, some never read.
            slow.sendall([b"", b"GET /api/v1/status HTTP/1.1\r\nHost: loc", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50][number % 3])
        assert web.document("status")["totals"]["tunnels"] == 1
        large = web.ask("/api/v1/status?after=" + "x" * 20000)
        assert large[0] in (414, 431), large
        silent = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
        silent.connect(str(web.socket))
        silent.settimeout(2 * patience.SECONDS)
        assert silent.recv(1) == b"", "a silent client is let go"
    many = [threading.Thread(target=web.document, args=("counters",)) for _ in range(200)]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert web.document("status")["totals"]["tunnels"] == 1


FLOOD = """
import resource, select, signal, socket, sys
kind, address, count, text = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode().decode("unicode_escape").encode()
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
held = []
for number in range(count):
    stream = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    stream.settimeout(60)
    stream.connect(address if kind == "unix" else ("127.0.0.1", int(address)))
    try:
        stream.sendall(text)
    except ConnectionError:
        pass
    held.append(stream)
print("held", flush=True)
sys.stdin.read()
"""
SILENT, KEPT, STREAMS = (
    "",
    f"GET /healthz HTTP/1.1\\r\\nHost: localhost:{PORT}\\r\\nAuthorization: Bearer {TOKEN}\\r\\n\\r\\n",
    f"GET /api/v1/events HTTP/1.1\\r\\nHost: localhost:{PORT}\\r\\nAuthorization: Bearer {TOKEN}\\r\\n\\r\\n",
)


@contextlib.contextmanager
def flood(namespace, user, *arguments):
    """Connections of a user, held open meanwhile."""
    drop = ["setpriv", "--reuid", str(user), "--regid", str(READERS), "--clear-groups", "--inh-caps=-all"]
    command = ["ip", "netns", "exec", namespace.name, *drop, "/usr/bin/python3", "-c", FLOOD, *map(str, arguments)]
    held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout.readline() == "held\n"
    yield held
    held.stdin.close()
    assert held.wait(patience.SECONDS) == 0


def test_one_user_shuts_nobody_out(network, gateway, tcp):
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for text, count in ((SILENT, 2000), (KEPT, 1000), (STREAMS, 300)):
        with flood(network.left, 64990, "tcp", PORT, count, text) as busy, flood(network.left, 64991, "tcp", PORT, 1, KEPT):
            assert tcp.ask("/api/v1/status", bearer, connection=tcp.tcp())[0] == 200, text
            # A stream begins, and goes on.
            with contextlib.closing(tcp.tcp()) as listener:
                listener.request("GET", "/api/v1/events", headers=bearer)
                answer = listener.getresponse()
                assert answer.status == 200, text
                while b"heartbeat" not in (line := answer.readline()):
                    assert line, "the stream has ended"
            assert busy.poll() is None
        for user in (0, 64991):
            with flood(network.left, user, "tcp", PORT, 1, KEPT):
                pass


@pytest.fixture(scope="module")
def schemathesis(tmp_path_factory):
    """schemathesis (PyPI), in an environment of its own."""
    return prerequisite.python_package(tmp_path_factory.mktemp("venv"), SCHEMATHESIS) / "st"


def test_the_server_is_what_its_document_says(network, gateway, tcp, schemathesis, tmp_path):
    """Requests that the document allows and ones that it does not, by a program that has read only
    the document."""
    gateway.start(PROTECTED.lines(HERE, THERE), more=READABLE)
    document = prerequisite.REPOSITORY / "docs" / "openapi.json"
    served = tcp.ask("/api/v1/openapi.json", {"Authorization": f"Bearer {TOKEN}"}, connection=tcp.tcp())[2]
    assert served == json.loads(document.read_text())
    # What is refused is refused so, too: a query that is too long.
    refusals = "[400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, '5xx']"
    settings = tmp_path / "schemathesis.toml"
    hooks = prerequisite.REPOSITORY / "tests/interop/openapi_hooks.py"
    settings.write_text(f'hooks = "{hooks}"\n[checks.negative_data_rejection]\nexpected-statuses = {refusals}\n')
    program = [schemathesis, "--config-file", settings, "run"]
    command = ["ip", "netns", "exec", network.left.name, *program, document, "--url", f"http://127.0.0.1:{PORT}"]
    options = ["--header", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--max-examples", "60", "--seed", "1"]
    options += ["--no-color"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path, timeout=10 * patience.SECONDS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    operations = len(served["paths"])
    assert re.search(rf"Operations:.*\b{operations}\b", done.stdout) and re.search(rf"Tested: +{operations}\b", done.stdout), done.stdout[-3000:]


@pytest.mark.alone
def test_a_hundred_thousand_tunnels_are_told(uxfrm, tmp_path, capsys):
    """Times are printed, and none is asserted."""
    with topology.Hosts() as hosts:
        namespace = hosts.namespace("many")
        gateway = hosts.gateway(uxfrm, namespace)
        times = {}
        for count in (10, PEERS):
            gateway.start(many(count), guard="off", more=READABLE)
            web = Web(uxfrm, namespace, tmp_path, "--socket", str(tmp_path / "web.sock"))
            try:
                web.wait_until_ready(web.unix)
                for path in ("status", "counters", "drops", "status?limit=10000&after="):
                    begun = time.monotonic()
                    told = web.document(path)
                    times[count, path] = time.monotonic() - begun
                    if "tunnels" in told and "totals" in told:
                        assert told["totals"]["tunnels"] == count
                assert len(told["tunnels"]) == min(count, 10000)
            finally:
                web.close()
            gateway.stop()
        with capsys.disabled():
            told = (f"{path} {times[PEERS, path]:.2f} s ({times[PEERS, path] / times[10, path]:.0f} times that of 10)" for _, path in list(times)[:4])
            print(f"\n{PEERS} tunnels by HTTP: " + "; ".join(told))


def many(count):
    for number in range(count):
        peer = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        behind = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        yield f"xfrm state add src 10.9.0.1 dst {peer} proto esp spi {number + 256} reqid {number + 1} mode tunnel aead rfc4106(gcm(aes)) 0x{number + 1:040x} 128"
        yield f"xfrm policy add src 10.1.0.1 dst {behind} dir out tmpl src 10.9.0.1 dst {peer} proto esp reqid {number + 1} mode tunnel"
