"""Two gateways and every kind of socket on the left one, for tests of where what sockets send goes.

    10.1.0.1 on lo                                      10.2.0.1 on lo, 10.66.0.1 as well
    ┌─ namespace left ─┐             wire                ┌─ namespace right ─┐
    │  uxfrm   wire0 ──┼─────────────────────────────────┼── wire0    uxfrm  │
    └──────────────────┘  10.9.0.1   │   10.9.0.2, .7    └───────────────────┘

Left sends what no route of its own leads elsewhere to right, which has addresses enough for a
neighbour, a protected net and others.
"""

import contextlib
import socket
import struct
import time

import echo
import patience
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from topology import HERE, THERE

SECONDS = patience.SECONDS
NEIGHBOUR = {4: "10.9.0.7", 6: "fd09::7"}
OTHER = {4: "10.66.0.1", 6: "fd66::1"}
NET = {4: "10.2.0.0/16", 6: "fd02::/16"}
LAN = {4: "10.9.0.0/24", 6: "fd09::/64"}
ALL = {4: "0.0.0.0/0", 6: "::/0"}


class Pair(topology.PlacedGateways):
    """Right takes everything and answers; left leads everything to it."""

    def _build(self, uxfrm):
        super()._build()
        self.uxfrm = str(uxfrm)
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        for family in (4, 6):
            self.right.address("wire0", NEIGHBOUR[family] + ("/24" if family == 4 else "/64"))
            self.right.address("lo", OTHER[family] + ("/32" if family == 4 else "/128"))
            self.left.neighbour("wire0", self.right.mac("wire0"), NEIGHBOUR[family])
            version = "" if family == 4 else "-6 "
            self.left.ip(f"{version}route del {THERE.inner[family]}")
            self.left.ip(f"{version}route add default via {THERE.outer[family]}")
            self.right.ip(f"{version}route add default via {HERE.outer[family]}")

    def start(self, family, policies, more=(), there=None, **options):
        """Left with these policies `out`: (source, destination, further words, whether it
        protects)."""
        association = Association(GCM_128, "tunnel", family, family)
        ends = f"src {HERE.outer[family]} dst {THERE.outer[family]}"
        template = f"tmpl {ends} proto esp reqid 1 mode tunnel"
        self.lines = [
            f"xfrm policy add src {source} dst {destination} {words} dir out priority {number} {template if protects else ''}"
            for number, (source, destination, words, protects) in enumerate(policies, 1)
        ]
        self.here.start(
            [*association.states(HERE, THERE), *self.lines, *more], more=CONTROLLED + options.pop("more", ""), **options
        )
        self.there.start([*association.states(THERE, HERE), *(there or [])])
        self.between.seen()

    def sent(self, expected):
        """What left sent: kinds of frames, once as many have been seen."""
        frames, deadline = [], time.monotonic() + SECONDS
        while len(frames) < expected and time.monotonic() < deadline:
            seen = [frame for outgoing, frame in self.between.seen() if outgoing]
            frames += [frame for frame in seen if wire.protocol(frame) != "housekeeping"]
            time.sleep(0.01)
        return frames

    def kinds(self, expected=1):
        return ["esp" if wire.protocol(frame) == "esp" else "plain" for frame in self.sent(expected)]

    def route(self, destination):
        """The device and the source address of an unbound socket."""
        words = self.left.ip(f"route get {destination}").split()
        return words[words.index("dev") + 1], words[words.index("src") + 1]


def datagrams(family):
    return socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def unbound(family, destination, _):
    with datagrams(family) as made:
        made.sendto(echo.MARKER, (destination, 9))


def bound(family, destination, source):
    with datagrams(family) as made:
        made.bind((source, 0))
        made.sendto(echo.MARKER, (destination, 9))


def connected(family, destination, _):
    with datagrams(family) as made:
        made.connect((destination, 9))
        made.send(echo.MARKER)


def raw(family, destination, _):
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_RAW, 253) as made:
        made.sendto(echo.MARKER, (destination, 0))


def ping(family, destination, _):
    kind, number, request = (socket.AF_INET, 1, 8) if family == 4 else (socket.AF_INET6, 58, 128)
    with socket.socket(kind, socket.SOCK_RAW, number) as made:
        header = struct.pack("!BBHHH", request, 0, 0, 7, 1)
        total = sum(struct.unpack("!8H", header + echo.MARKER[:8]))
        header = struct.pack("!BBHHH", request, 0, ~(total % 0xFFFF) & 0xFFFF, 7, 1)
        made.sendto(header + echo.MARKER[:8], (destination, 0))


def tcp(family, destination, _):
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect((destination, 9))
        time.sleep(0.05)


SOCKETS = [unbound, bound, connected, raw, ping, tcp]
