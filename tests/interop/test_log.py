"""The log: one line for each change of a state or policy, SPIs in hex, no keys; as JSON objects
with `--log json`, to the journal where stderr is the journal; bounded where a client changes many."""

import json
import os
import re
import socket
import subprocess
import time

import pytest

import patience
import topology
from gateway import CONTROLLED, Gateway

KEY = "0x" + "4d1b" * 10
SPI = 0x12AB
STATE = f"src 10.9.0.1 dst 10.9.0.2 proto esp spi {SPI:#x} reqid 7 mode tunnel aead rfc4106(gcm(aes)) {KEY} 128"
POLICY = "src 10.1.0.0/16 dst 10.2.0.0/16 proto udp dport 53 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp reqid 7 mode tunnel"


class LoggingGateway(Gateway):
    """With options of `uxfrm run`, an environment, and perhaps a journal."""

    def __init__(self, binary, namespace, options=(), **environment):
        super().__init__(binary, namespace)
        self._options = options
        self._environment = {**os.environ, **environment}
        self.stderr = None

    def launch(self):
        with open(self.directory / "log", "w") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace.name, self._binary, "run", *self._options, self.directory / "config.toml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=self.stderr or log,
                env=self._environment,
            )
        if self.stderr is None:
            self._wait_until_ready()


@pytest.fixture
def namespace():
    with topology.Hosts() as hosts:
        yield hosts.namespace("alone")


@pytest.fixture
def launch(uxfrm, namespace):
    launched = []

    def launch(*options, stderr=None, **environment):
        gateway = LoggingGateway(uxfrm, namespace, options, **environment)
        gateway.stderr = stderr
        launched.append(gateway)
        gateway.start(more=CONTROLLED)
        return gateway

    yield launch
    for gateway in launched:
        gateway.close()


def change(gateway, uxfrm, *lines):
    batch = gateway.directory / "changes"
    batch.write_text("".join(f"{line}\n" for line in lines))
    gateway.namespace.run(str(uxfrm), "xfrm", "-batch", str(batch))


def wait_for(gateway, pattern):
    deadline = time.monotonic() + patience.SECONDS
    while not (found := re.findall(pattern, gateway.log())):
        assert time.monotonic() < deadline, f"{pattern} is not in the log:\n{gateway.log()}"
        time.sleep(0.02)
    return found


def test_each_change_has_a_line(uxfrm, launch):
    gateway = launch()
    change(gateway, uxfrm, f"state add {STATE}", f"policy add {POLICY}", "policy deleteall", "state deleteall")
    wait_for(gateway, r"state added .*spi=0x000012ab .*source=10\.9\.0\.1 .*destination=10\.9\.0\.2 .*reqid=7")
    wait_for(gateway, r"policy added .*selector=src 10\.1\.0\.0/16 dst 10\.2\.0\.0/16 proto udp dport 53 .*reqid 7")
    wait_for(gateway, r"policy deleted .*selector=src 10\.1\.0\.0/16")
    wait_for(gateway, r"state deleted .*spi=0x000012ab")
    assert "4d1b4d1b" not in gateway.log().lower()
    assert str(SPI) not in gateway.log(), "an SPI in decimal"


def test_json_is_an_object_a_line(uxfrm, launch):
    gateway = launch("--log", "json")
    change(gateway, uxfrm, f"state add {STATE}")
    wait_for(gateway, "state added")
    entries = [json.loads(line) for line in gateway.log().splitlines()]
    assert [entry["level"] for entry in entries if entry["message"] == "uxfrm: ready"] == ["INFO"]
    assert all({"timestamp", "level", "message"} <= entry.keys() for entry in entries)
    [added] = [entry for entry in entries if entry["message"] == "state added"]
    assert (added["level"], added["spi"], added["destination"], added["reqid"]) == ("INFO", "0x000012ab", "10.9.0.2", 7)
    assert "4d1b4d1b" not in gateway.log().lower()


def test_level_is_set_by_rust_log(uxfrm, launch):
    gateway = launch(RUST_LOG="error")
    change(gateway, uxfrm, f"state add {STATE}", f"policy add {POLICY}")
    gateway.stop()
    assert "state added" not in gateway.log()


def test_many_changes_are_bounded_and_counted(uxfrm, launch):
    gateway = launch()
    many = 2000
    states = (STATE.replace(f"{SPI:#x}", f"{0x10000 + number:#x}") for number in range(many))
    change(gateway, uxfrm, *(f"state add {state}" for state in states))
    [untold] = wait_for(gateway, r"told singly at level debug states=(\d+)")[:1]
    told = len(re.findall("state added", gateway.log()))
    assert told < many / 2, f"{told} lines of {many} changes"
    assert int(untold) > 0


def test_wrong_form_is_refused(uxfrm, namespace):
    done = subprocess.run([uxfrm, "run", "--log", "xml", "x.toml"], capture_output=True, text=True, timeout=patience.SECONDS)
    assert done.returncode == 2
    assert "text, json, journald" in done.stderr


@pytest.fixture
def journal():
    """A socket in the journal's place: a mount of the test's own namespace of mounts would be
    needed for the real path, so only where nothing is there."""
    path = "/run/systemd/journal/socket"
    if os.path.exists(path):
        pytest.skip("not run: this machine has a journal")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        os.chmod(path, 0o666)
        listening.settimeout(patience.SECONDS)
        try:
            yield listening
        finally:
            os.unlink(path)


def test_journal_gets_fields(uxfrm, launch, journal):
    gateway = launch("--log", "journald")
    change(gateway, uxfrm, f"state add {STATE}")
    entry = b""
    while b"state added" not in entry:
        entry = journal.recv(65536)
    assert field("UXFRM_SPI", "0x000012ab") in entry, entry
    assert field("PRIORITY", "5") in entry, entry


def test_journal_that_does_not_read_holds_up_nothing(uxfrm, launch, journal):
    gateway = launch("--log", "journald", RUST_LOG="debug")
    fill_log(gateway, uxfrm)
    entry = b""
    while b"lines of the log are lost" not in entry:
        entry = journal.recv(65536)
    assert field("PRIORITY", "4") in entry, entry


def test_reader_of_stderr_that_does_not_read_holds_up_nothing(uxfrm, launch):
    reading, writing = os.pipe()
    gateway = launch(stderr=writing, RUST_LOG="debug")
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe:
        while b"uxfrm: ready" not in pipe.readline():
            pass
        fill_log(gateway, uxfrm)
        while b"lines of the log are lost" not in pipe.readline():
            pass


def fill_log(gateway, uxfrm):
    """More lines than may wait, none of which is read; the gateway goes on to answer."""
    many = 6000
    change(gateway, uxfrm, *(f"state add {STATE.replace(f'{SPI:#x}', f'{0x10000 + number:#x}')}" for number in range(many)))
    listed = gateway.namespace.run(str(uxfrm), "xfrm", "state", "list", "nokeys")
    assert listed.count("spi 0x") == many


def test_wrong_level_is_named_and_info_taken(uxfrm, launch):
    gateway = launch(RUST_LOG="verbose")
    change(gateway, uxfrm, f"state add {STATE}")
    wait_for(gateway, r'RUST_LOG="verbose": "verbose" is no level')
    wait_for(gateway, "state added")


def field(name, value):
    """As the journal's protocol has it: name, length, value."""
    return f"{name}\n".encode() + len(value).to_bytes(8, "little") + f"{value}\n".encode()
