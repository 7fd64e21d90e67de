"""Numbered datagrams through two gateways that are now and then too slow: what was sent is what was received and what has a name.

A gateway that sleeps is one that is too slow on any machine: its sockets, its ring and its TUN run full.
"""

import contextlib
import json
import socket
import struct
import threading
import time

import pytest

import topology
from association import GCM_128, Association
from gateway import Gateway
from topology import HERE, THERE

BURST = 2_000
TRAIN = 20_000
SLEEPING = 60_000
HOST_SLEEPING = 12_000
PADDING = bytes(1000)
PORT = 4711
WAIT_SECONDS = 60
QUIET_SECONDS = 5
JOINED = 64  # datagrams that the kernel joins (`UDP_GRO`) are counted once where a socket has no room for them
SO_MEMINFO, MEMINFO_DROPS = 55, 8
IP_RECVERR = 11
UDP = "encap espinudp 4500 4500 0.0.0.0"
WAYS = [
    pytest.param("", "", 1, id="raw"),
    pytest.param("", "", 2, id="raw-two-workers"),
    pytest.param(UDP, "", 1, id="udp"),
    pytest.param(UDP, "", 2, id="udp-two-workers"),
    pytest.param("", 'af_xdp = "wire0"', 1, id="af_xdp"),
]


class Receiver:
    """Counts datagrams, those included that found no room in its socket."""

    def __init__(self, namespace):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.2)
        self._socket.bind((THERE.inner[4], PORT))
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
    def __init__(self, namespace):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HERE.inner[4], 0))
        self._socket.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)  # says what a queueing discipline drops
        self._socket.connect((THERE.inner[4], PORT))
        self.sent, self._number, self._namespace = 0, 0, namespace

    def send(self, count):
        """As fast as the gateway reads its TUN."""
        for _ in range(0, count, BURST):
            self.burst(BURST)
            deadline = time.monotonic() + WAIT_SECONDS
            while self._taken() < self.sent:
                assert time.monotonic() < deadline, "the gateway does not read"
                time.sleep(0.001)

    def _taken(self):
        counts = link(self._namespace, "uxfrm0")["tx"]
        return counts["packets"] + counts["dropped"]

    def burst(self, count):
        for _ in range(count):
            self._number += 1
            with contextlib.suppress(OSError):
                self._socket.send(struct.pack("!I", self._number) + PADDING)
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
    lines = gateway.namespace.run(str(gateway._binary), "stat", "--reasons").splitlines()
    return {name: int(count) for name, count in map(str.split, lines) if count != "0"}


def link(namespace, device):
    return json.loads(namespace.ip(f"-s -j link show dev {device}"))[0]["stats64"]


def dropped_on_the_wire(network):
    """The kernel's own: a veth whose other end's queue is full."""
    return link(network.left, "wire0")["tx"]["dropped"]


@pytest.mark.parametrize(("encap", "wire", "workers"), WAYS)
def test_sent_is_received_and_named_drops(uxfrm, encap, wire, workers):
    association = Association(GCM_128, "tunnel", 4, 4, extra=f"replay-window 1024 {encap}")
    with topology.PlacedGateways() as network, contextlib.ExitStack() as stack:
        here, there = (Gateway(uxfrm, side, workers=workers) for side in (network.left, network.right))
        for gateway, lines in ((here, association.lines(HERE, THERE)), (there, association.lines(THERE, HERE))):
            stack.callback(gateway.close)
            gateway.start(lines, wire=wire)
        receiver, sender = Receiver(network.right), Sender(network.left)
        stack.callback(receiver.close)
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
            if missing == 0 or time.monotonic() > deadline or (encap and quiet.lasts(missing)):
                break
            time.sleep(0.2)
        in_full = named[1].get("in_port_full", 0)
        assert 0 <= missing <= (in_full * (JOINED - 1) if encap else 0), named
        assert in_full > 0, "its socket or ring was full while it slept"
        assert named[0].get("out_port_full", 0) > 0, "the TUN was full while its reader slept"
