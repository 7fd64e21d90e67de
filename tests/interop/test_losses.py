"""Numbered datagrams through two gateways that are now and then too slow: what was sent is what was
received and what has a name.

A gateway that sleeps is one that is too slow on any machine: its sockets, its ring and its TUN
run full. UXFRM_SOAK says how many datagrams there are at least (`UXFRM_SOAK=1050000` for a
soak).
"""

import contextlib
import json
import os
import re
import socket
import struct
import threading
import time

import pytest

import topology
from association import GCM_128, Association
from gateway import Gateway
from test_tunnel import INSIDE, Case, start
from topology import HERE, THERE

BURST = 2_000
SLEEPING = 60_000
HOST_SLEEPING = 12_000
AWAKE = max(60_000, int(os.environ.get("UXFRM_SOAK", "0")) - SLEEPING - HOST_SLEEPING)
TRAIN = -(-AWAKE // (3 * BURST)) * BURST
FLOWS = 4  # of one state, for each worker to have some
PADDING = bytes(1000)
PORT = 4711
WAIT_SECONDS = 60
QUIET_SECONDS = 5
JOINED = 64  # datagrams that the kernel joins (`UDP_GRO`) are counted once where a socket has no room for them
CARRIED = re.compile(r"_(sent|received)_(packets|bytes)$")
SO_MEMINFO, MEMINFO_DROPS = 55, 8
IP_RECVERR = 11
UDP = "encap espinudp 4500 4500 0.0.0.0"
WAYS = [
    pytest.param("", "", 1, id="raw"),
    pytest.param("", "", 2, id="raw-two-workers"),
    pytest.param(UDP, "", 1, id="udp"),
    pytest.param(UDP, "", 2, id="udp-two-workers"),
    pytest.param("", 'af_xdp = "wire0"', 1, id="af_xdp"),
    pytest.param("", 'af_xdp = "wire0"', 2, id="af_xdp-two-workers"),
]


class Receiver:
    """Counts datagrams, those included that found no room in its socket."""

    def __init__(self, namespace, address):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.2)
        self._socket.bind((address, PORT))
        self.numbers, self._ended = set(), False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while not self._ended:
            with contextlib.suppress(TimeoutError):
                number = struct.unpack_from("!I", self._socket.recv(64))[0]
                assert number not in self.numbers, f"{number} came twice"
                self.numbers.add(number)

    def count(self):
        memory = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
        return len(self.numbers) + struct.unpack_from("I", memory, 4 * MEMINFO_DROPS)[0]

    def close(self):
        self._ended = True
        self._thread.join()
        self._socket.close()


class Sender:
    def __init__(self, namespace, device, source, destination):
        with namespace.entered():
            self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
        for flow in self._sockets:
            flow.bind((source, 0))
            flow.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)  # says what a queueing discipline drops
            flow.connect((destination, PORT))
        self.sent, self._number, self._namespace, self._device = 0, 0, namespace, device

    def send(self, count):
        """As fast as the gateway reads its TUN."""
        for _ in range(0, count, BURST):
            self.burst(BURST)
            deadline = time.monotonic() + WAIT_SECONDS
            while self._taken() < self.sent:
                assert time.monotonic() < deadline, "the gateway does not read"
                time.sleep(0.001)

    def _taken(self):
        counts = link(self._namespace, self._device)["tx"]
        return counts["packets"] + counts["dropped"]

    def burst(self, count):
        for _ in range(count):
            self._number += 1
            with contextlib.suppress(OSError):
                self._sockets[self._number % FLOWS].send(struct.pack("!I", self._number) + PADDING)
                self.sent += 1


class Quiet:
    """Whether a number has not changed for so long that every counter was told anew."""

    def __init__(self):
        self._number, self._since = None, 0

    def lasts(self, number):
        if number != self._number:
            self._number, self._since = number, time.monotonic()
        return time.monotonic() - self._since > QUIET_SECONDS


def reasons(gateway):
    """What was dropped; what tunnels and their ports carried is told among it."""
    lines = gateway.namespace.run(str(gateway._binary), "stat", "--reasons").splitlines()
    counts = {name: int(count) for name, count in map(str.split, lines) if count != "0"}
    return {name: count for name, count in counts.items() if not CARRIED.search(name)}


def link(namespace, device):
    return json.loads(namespace.ip(f"-s -j link show dev {device}"))[0]["stats64"]


def dropped_on_the_wire(network):
    """The kernel's own: a veth whose other end's queue is full."""
    return link(network.left, "wire0")["tx"]["dropped"]


@pytest.mark.parametrize(("encap", "wire", "workers"), WAYS)
def test_sent_is_received_and_named_drops(uxfrm, encap, wire, workers):
    association = Association(GCM_128, "tunnel", 4, 4, extra=f"replay-window 1024 {encap}")
    with topology.PlacedGateways() as network:
        both = network.gateways = [Gateway(uxfrm, side, workers=workers) for side in (network.left, network.right)]
        for gateway, lines in zip(both, (association.lines(HERE, THERE), association.lines(THERE, HERE)), strict=True):
            network.callback(gateway.close)
            gateway.start(lines, wire=wire)
        named = hold_out(network, "uxfrm0", (HERE.inner[4], THERE.inner[4]), is_joined=bool(encap))
        assert named[1].get("in_port_full", 0) > 0, "its socket or ring was full while it slept"
        assert named[0].get("out_port_full", 0) > 0, "the TUN was full while its reader slept"


@pytest.mark.parametrize("case", [Case("gre", 4), Case("ipip", 4, "fou"), Case("gre", 4, "gue")], ids=str)
def test_what_tunnels_have_no_room_for_has_a_name(uxfrm, case):
    inside = INSIDE[4][:2]
    with topology.PlacedGateways() as network:
        network.gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
        for gateway, ends, address in zip(network.gateways, ((HERE, THERE), (THERE, HERE)), inside, strict=True):
            network.callback(gateway.close)
            start(gateway, case.lines(*ends))
            gateway.namespace.address("tun1", f"{address}/{INSIDE[4][2]}")
        named = hold_out(network, "tun1", inside, is_joined=case.encap != "none")
        assert named[1].get("tunnel_in_port_full", 0) > 0, "its socket was full while it slept"
        assert named[0].get("tunnel_out_port_full", 0) > 0, "the TUN was full while its reader slept"


def hold_out(network, device, ends, is_joined):
    """Sends, also while either gateway sleeps, until all are received or have a name; the drops
    of both."""
    here, there = network.gateways
    receiver, sender = Receiver(network.right, ends[1]), Sender(network.left, device, *ends)
    with contextlib.closing(receiver):
        sender.send(TRAIN)
        with there.asleep():
            sender.send(SLEEPING)
        sender.send(TRAIN)
        with here.asleep():
            sender.burst(HOST_SLEEPING)
        sender.send(TRAIN)
        deadline, quiet = time.monotonic() + WAIT_SECONDS, Quiet()
        while True:
            named = [reasons(gateway) for gateway in (here, there)]
            lost = sum(sum(counts.values()) for counts in named) + dropped_on_the_wire(network)
            missing = sender.sent - receiver.count() - lost
            if missing == 0 or time.monotonic() > deadline or (is_joined and quiet.lasts(missing)):
                break
            time.sleep(0.2)
        print(f"sent {sender.sent}, received {len(receiver.numbers)}, left {named[0]}, right {named[1]}, missing {missing}")
        full = sum(count for name, count in named[1].items() if name.endswith("in_port_full"))
        assert 0 <= missing <= (full * (JOINED - 1) if is_joined else 0), named
        return named
