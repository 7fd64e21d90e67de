"""UDP port 4500 of uxfrm and an IKE daemon: ESP for the one, IKE for the other, whoever starts,
ends or is killed.

        ┌─ namespace left ───────────┐  veth   ┌─ namespace right ──────────┐
        │ lo      10.1.0.1  fd01::1  │         │ lo      10.2.0.1  fd02::1  │
        │ uxfrm0  (TUN)              │         │ uxfrm0  (TUN)              │
        │ wire0   10.9.0.1  fd09::1 ─┼─────────┼─ wire0  10.9.0.2  fd09::2  │
        └────────────────────────────┘    ▲    └────────────────────────────┘
                                         wire

The daemon is `tests/peer/fake_ike.py` under `uxfrm exec`: real sockets, no IKE.
"""

import contextlib
import ipaddress
import json
import pathlib
import queue
import subprocess
import threading

import pytest

import patience
import topology
import wire
from association import GCM_128, Association
from gateway import Gateway
from namespace import UNANSWERED_SECONDS
from stranger import stranger
from topology import HERE, THERE

DAEMON = pathlib.Path(__file__).parents[1] / "peer" / "fake_ike.py"
PYTHON = "/usr/bin/python3"
SECONDS = patience.SECONDS
ENCAP = "encap espinudp 4500 4500 0.0.0.0"
ANY = ["0.0.0.0", "::"]


def ike(number, length=200):
    """A zero marker and what looks like an IKE message of its own."""
    return (bytes(4) + b"SPI" + number.to_bytes(5, "big") + b"IKE-MESSAGE!" * (length // 12)).hex()


class SharingGateway(Gateway):
    """A gateway with a control socket and, unlike others here, no word of port 4500 in its
    configuration."""

    workers = 1

    def write(self, lines, guard="auto", more="", wire="", at_exit="open"):
        super().write(lines, guard, more, wire, at_exit)
        path = self.directory / "config.toml"
        text = path.read_text().replace("udp_ports = [4500]", "udp_ports = []")
        text = text.replace("workers = 1", f"workers = {self.workers}")
        path.write_text(text + "\n[control]\nenabled = true\n")


class Daemon:
    def __init__(self, uxfrm, namespace, addresses):
        command = ["ip", "netns", "exec", namespace.name, uxfrm, "exec", "--", PYTHON, DAEMON, *addresses]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.heard = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.next() == {"ready": addresses}

    def _listen(self):
        for line in self.process.stdout:
            self.heard.put(json.loads(line))

    def next(self):
        return self.heard.get(timeout=SECONDS)

    def send(self, bound, source, to, data, port=4500):
        order = {"from": bound, "source": source, "to": [to, port], "data": data}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.process.stdin.close()


class Network(contextlib.ExitStack):
    def __init__(self, uxfrm, workers, family):
        super().__init__()
        self.uxfrm = uxfrm
        self.hosts = self.enter_context(topology.TwoGateways("wire0"))
        topology.place(self.hosts.left, "wire0", HERE)
        topology.place(self.hosts.right, "wire0", THERE)
        association = Association(GCM_128, "tunnel", family, family, extra=ENCAP, generation=workers)
        self.here = self._gateway(self.hosts.left, workers)
        self.there = self._gateway(self.hosts.right, workers)
        self.lines = [association.lines(HERE, THERE), association.lines(THERE, HERE)]
        self.family = family

    def _gateway(self, namespace, workers):
        made = SharingGateway(self.uxfrm, namespace)
        made.workers = workers
        self.callback(made.close)
        return made

    def start(self):
        self.here.start(self.lines[0])
        self.there.start(self.lines[1])

    def daemon(self, namespace, addresses):
        made = Daemon(self.uxfrm, namespace, addresses)
        self.callback(made.close)
        return made

    def ping(self):
        self.hosts.left.ping(HERE.inner[self.family], THERE.inner[self.family])


@pytest.fixture(params=[(1, 4), (2, 4), (1, 6)], ids=["one-worker-ipv4", "two-workers-ipv4", "one-worker-ipv6"])
def network(uxfrm, request):
    with Network(uxfrm, *request.param) as made:
        made.start()
        yield made


def assert_ike_flows(here, there, bound_here="0.0.0.0", bound_there="0.0.0.0", family=4):
    """Both ways, each told of true addresses, with and without a source of its choice."""
    ends = HERE.outer[family], THERE.outer[family]
    for number, source in enumerate([ends[0], None]):
        here.send(bound_here, source, ends[1], ike(number))
        assert there.next() == arrived(bound_there, ends, ike(number))
    there.send(bound_there, ends[1], ends[0], ike(9, 3000))
    assert here.next() == arrived(bound_here, ends[::-1], ike(9, 3000))


def arrived(bound, ends, data):
    source, to = ends
    return {"at": bound, "from": [source, 4500], "to": to, "data": data, "flags": 0}


def test_ike_flows_whoever_has_the_gateways_names(uxfrm):
    with Network(uxfrm, 1, 4) as network, stranger(network.hosts.left, "listens"):
        network.start()
        here, there = network.daemon(network.hosts.left, ANY), network.daemon(network.hosts.right, ANY)
        assert_ike_flows(here, there)
        network.ping()


@pytest.mark.parametrize(
    ("family", "manner", "said"),
    [(4, "silent", "user 2 has the socket name"), (6, "silent", "user 2 has"), (4, "connected", "takes no IKE messages")],
)
def test_a_stranger_at_a_daemon_s_address_gets_no_ike(uxfrm, family, manner, said):
    """It has the name of the one address; the daemon is bound to any."""
    address = ipaddress.ip_address(HERE.outer[family])
    name = f"dgram udp/4500/{int(address):0{address.max_prefixlen // 4}x}"
    with Network(uxfrm, 1, family) as network, stranger(network.hosts.left, manner, [name]):
        network.start()
        here = network.daemon(network.hosts.left, ANY)
        there = network.daemon(network.hosts.right, ANY)
        any_address = "0.0.0.0" if family == 4 else "::"
        assert_ike_flows(here, there, any_address, any_address, family)
        here.kill()
        there.send(any_address, None, HERE.outer[family], ike(4))
        patience.wait_for(lambda: said in network.here.log(), "word of the stranger")


def test_a_daemon_whose_names_are_taken_gets_its_ike(uxfrm):
    """Somebody else has the names of any address of both families before the daemon starts."""
    names = [f"dgram udp/4500/{'0' * digits}" for digits in (8, 32)]
    with Network(uxfrm, 1, 4) as network, stranger(network.hosts.left, "silent", names):
        network.start()
        here, there = network.daemon(network.hosts.left, ANY), network.daemon(network.hosts.right, ANY)
        assert_ike_flows(here, there)
        assert_ike_flows(here, there, "::", "::", 6)
        second = ["ip", "netns", "exec", network.hosts.left.name, network.uxfrm, "exec", "--", PYTHON, DAEMON, "0.0.0.0"]
        refused = subprocess.run(second, input="", capture_output=True, text=True)
        assert "Address already in use" in refused.stderr, "a file is taken once, too"
        here.kill()
        back = network.daemon(network.hosts.left, ANY)
        assert_ike_flows(back, there)


def test_esp_and_ike_share_the_port(network):
    here, there = network.daemon(network.hosts.left, ANY), network.daemon(network.hosts.right, ANY)
    network.hosts.between.seen()
    network.ping()
    assert_ike_flows(here, there)
    assert_ike_flows(here, there, "::", "::", 6)
    here.send("0.0.0.0", None, THERE.outer[4], "ff")
    network.ping()
    assert here.heard.empty() and there.heard.empty(), "an IKE daemon was given ESP or a keep-alive"
    frames = network.hosts.between.seen()
    assert any(wire.protocol(frame) == "esp-in-udp" for _, frame in frames)
    wire.assert_no_plaintext(frames)


def test_a_daemon_may_bind_addresses_of_its_own(network):
    own = network.daemon(network.hosts.left, [HERE.outer[4], HERE.outer[6], "127.0.0.1", "::1"])
    there = network.daemon(network.hosts.right, ANY)
    assert_ike_flows(own, there, bound_here=HERE.outer[4])
    assert_ike_flows(own, there, HERE.outer[6], "::", 6)
    any_address = network.daemon(network.hosts.left, ["0.0.0.0"])
    there.send("0.0.0.0", None, HERE.outer[4], ike(1))
    assert own.next()["at"] == HERE.outer[4]
    own.kill()
    there.send("0.0.0.0", None, HERE.outer[4], ike(2))
    assert any_address.next()["data"] == ike(2)
    network.ping()


def test_a_killed_daemon_takes_no_esp_along_and_comes_back(network):
    here, there = network.daemon(network.hosts.left, ANY), network.daemon(network.hosts.right, ANY)
    assert_ike_flows(here, there)
    there.kill()
    network.ping()
    here.send("0.0.0.0", None, THERE.outer[4], ike(5))
    network.ping()
    counted = network.hosts.right.run(str(network.uxfrm), "stat", "--reasons")
    back = network.daemon(network.hosts.right, ANY)
    assert_ike_flows(here, back)
    network.ping()
    assert ["in_ike_unclaimed", "1"] in [line.split() for line in counted.splitlines()]


def test_a_killed_gateway_leaves_nothing_plain_and_comes_back(network):
    here, there = network.daemon(network.hosts.left, ANY), network.daemon(network.hosts.right, ANY)
    assert_ike_flows(here, there)
    network.here.kill()
    network.hosts.between.seen()
    with pytest.raises(RuntimeError):
        network.hosts.left.ping(HERE.inner[network.family], THERE.inner[network.family], count=1, seconds=UNANSWERED_SECONDS)
    wire.assert_no_plaintext(network.hosts.between.seen())
    here.send("0.0.0.0", None, THERE.outer[4], ike(1))
    assert "error" in here.next()
    network.here.start(network.lines[0])
    assert_ike_flows(here, there)
    network.ping()


def test_the_port_is_taken_once(network):
    network.daemon(network.hosts.left, ANY)
    second = ["ip", "netns", "exec", network.hosts.left.name, network.uxfrm, "exec", "--", PYTHON, DAEMON, "0.0.0.0"]
    refused = subprocess.run(second, input="", capture_output=True, text=True)
    assert "Address already in use" in refused.stderr
