"""Traps: a packet under a policy without a state asks for one, waits for it and arrives; who
listens sees what Linux would say.

Left has the policies only, right the whole association. `ip xfrm monitor` of the machine,
unmodified, listens under `uxfrm exec`; the test is the key manager, and adds the states by hand.
"""

import contextlib
import re
import socket
import subprocess
import time

import pytest

import echo
import patience
import topology
from association import GCM_128, Association
from gateway import Gateway
from topology import HERE, THERE

SECONDS = patience.SECONDS
CASES = [Association(GCM_128, mode, family, family) for mode in ("tunnel", "transport") for family in (4, 6)]
CASES.append(Association(GCM_128, "tunnel", 6, 4))


class Controlled(Gateway):
    """Spoken to by its control socket."""

    def exec(self, words):
        """`uxfrm exec -- WORDS`."""
        return self.namespace.run(str(self._binary), "exec", "--", *words.split())


class Monitor(contextlib.AbstractContextManager):
    """`ip xfrm monitor acquire SA` under `uxfrm exec`."""

    def __init__(self, gateway):
        self._file = open(gateway.directory / "monitor", "w+")
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", gateway.namespace.name, gateway._binary, "exec", "--"]
            + ["stdbuf", "-oL", "ip", "xfrm", "monitor", "nokeys", "acquire", "SA"],
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )

    def text(self):
        with open(self._file.name) as file:
            return file.read()

    def wait_for(self, word, count=1):
        deadline = time.monotonic() + SECONDS
        while self.text().count(word) < count:
            assert time.monotonic() < deadline, f"no {word} in {self.text()!r}"
            assert self._process.poll() is None, self.text()
            time.sleep(0.01)

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait()
        self._file.close()


class Trapped(topology.PlacedGateways):
    def _build(self, uxfrm):
        super()._build()
        self.there = self.gateway(uxfrm, self.right)
        self.here = Controlled(uxfrm, self.left)
        self.callback(self.here.close)

    def start(self, association):
        self.here.start(association.policies(HERE, THERE))
        self.there.start(association.lines(THERE, HERE))


@pytest.fixture
def network(uxfrm):
    with Trapped(uxfrm) as made:
        yield made


def ping(network, association):
    """One request, its reply waited for."""
    source, destination = association.endpoints(HERE), association.endpoints(THERE)
    return subprocess.Popen(
        ["ip", "netns", "exec", network.left.name, "ping", "-n", "-c", "1", "-W", str(SECONDS), "-I", source, destination],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_heard(network, monitor):
    """Waits until the gateway knows that somebody listens: until then packets are dropped at
    once."""
    other = "src 198.51.100.1 dst 198.51.100.2 proto esp spi 0x77"
    deadline = time.monotonic() + SECONDS
    while "spi 0x00000077" not in monitor.text():
        assert time.monotonic() < deadline, "the monitor hears nothing"
        network.here.exec(f"ip xfrm state add {other} reqid 77 mode tunnel {GCM_128.words(b'k' * 128)}")
        network.here.exec(f"ip xfrm state delete {other}")
        time.sleep(0.05)


@pytest.mark.parametrize("association", CASES, ids=str)
def test_the_first_packet_brings_the_state_and_arrives(network, association):
    network.start(association)
    with Monitor(network.here) as monitor:
        is_heard(network, monitor)
        first = ping(network, association)
        monitor.wait_for("acquire")
        text = monitor.text()
        # Half a second without a state: the packet waits.
        time.sleep(0.5)
        assert first.poll() is None and monitor.text().count("acquire") == 1
        assert network.here.exec("ip xfrm state count").split()[-1] == "1", "the larval state"
        # As IKE does: inbound first, as the packet leaves with the other one.
        for line in reversed(association.states(HERE, THERE)):
            network.here.exec(f"ip {line}")
        out, _ = first.communicate(timeout=SECONDS)
    assert " 0% packet loss" in out, out
    assert network.here.statistics() == {}
    ends = f"src {HERE.outer[association.outer]} dst {THERE.outer[association.outer]}"
    flow = rf"sel src {association.endpoints(HERE)}/\d+ dst {association.endpoints(THERE)}/\d+ proto (ipv6-)?icmp"
    assert re.search(rf"acquire proto esp\s+{flow}", text), text
    assert re.search(rf"tmpl {ends}\s+proto esp reqid 1 mode {association.mode}", text), text


def test_when_nobody_listens_packets_are_dropped_at_once(network):
    association = CASES[0]
    network.start(association)
    with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HERE.inner[4], 0))
        for _ in range(5):
            sender.sendto(echo.MARKER, (THERE.inner[4], 9))
    deadline = time.monotonic() + SECONDS
    while network.here.statistics() != {"XfrmOutNoStates": 5}:
        assert time.monotonic() < deadline, network.here.statistics()
        time.sleep(0.02)
    assert network.here.exec("ip xfrm state count").split()[-1] == "0"


def test_nobody_answers(network):
    """A hundred packets wait, as in Linux; they are dropped when the larval state goes."""
    association = CASES[0]
    network.start(association)
    with Monitor(network.here) as monitor:
        is_heard(network, monitor)
        with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((HERE.inner[4], 0))
            for _ in range(150):
                sender.sendto(echo.MARKER, (THERE.inner[4], 9))
        monitor.wait_for("acquire")
        deadline = time.monotonic() + SECONDS
        while network.here.statistics() != {"XfrmOutNoStates": 50}:
            assert time.monotonic() < deadline, network.here.statistics()
            time.sleep(0.02)
        network.here.exec("ip xfrm state flush")
        while network.here.statistics() != {"XfrmOutNoStates": 150}:
            assert time.monotonic() < deadline, network.here.statistics()
            time.sleep(0.02)
