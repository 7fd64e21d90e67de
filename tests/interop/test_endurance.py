"""Kills, stops, upgrades and lost, old or foreign stores of sequence numbers, one after the other
by a seed, beneath traffic of both families.

All that passes the wire is looked at: no IV comes twice with a key, and nothing is plain. After
each of them traffic is back. UXFRM_ROUNDS says how many there are of each (`make endure` has
300), UXFRM_SEED in which order; in host mode, and in inline mode between a gateway with packet
sockets and one with AF_XDP.
"""

import dataclasses
import os
import random
import shutil
import socket
import struct
import threading
import time

import pytest

import echo
import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_inline import INLINE, PACKET, XDP
from topology import HERE, THERE

ROUNDS = int(os.environ.get("UXFRM_ROUNDS", "2"))
SEED = int(os.environ.get("UXFRM_SEED", "1"))
PAUSE_SECONDS = 0.0005
BACK_SECONDS = patience.SECONDS
SHOWN = echo.MARKER[:8]
# The hosts behind gateways in inline mode.
LEFT = dataclasses.replace(HERE, inner={4: "10.1.0.2", 6: "fd01::2"})
RIGHT = dataclasses.replace(THERE, inner={4: "10.2.0.2", 6: "fd02::2"})
STATIC = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 128")
STATIC6 = Association(GCM_128, "tunnel", 6, 4, extra="replay-window 128")


class Stream:
    """Datagrams of one family from one end to the other, whatever becomes of them."""

    def __init__(self, here, there, source, destination):
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with there.entered():
            self._far = socket.socket(family, socket.SOCK_DGRAM)
        self._far.bind((destination, 7400))
        self._far.settimeout(0.2)
        with here.entered():
            self._near = socket.socket(family, socket.SOCK_DGRAM)
        self._near.bind((source, 0))
        self._to = (destination, 7400)
        self._ends = threading.Event()
        self.sent, self.arrived = 0, 0
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]

    def _send(self):
        while not self._ends.is_set():
            try:
                self._near.sendto(echo.MARKER * 3, self._to)
                self.sent += 1
            except OSError:
                pass  # while no gateway runs, the destination is unreachable
            time.sleep(PAUSE_SECONDS)

    def _receive(self):
        while not self._ends.is_set():
            try:
                self.arrived += self._far.recv(2048) == echo.MARKER * 3
            except TimeoutError:
                pass

    def start(self):
        for thread in self._threads:
            thread.start()

    def close(self):
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self._near.close()
        self._far.close()

    def wait(self, what):
        """Until datagrams arrive that were sent from now on."""
        until, deadline = self.arrived + 20, time.monotonic() + BACK_SECONDS
        while self.arrived < until:
            assert time.monotonic() < deadline, f"after {BACK_SECONDS} s no traffic is back: {what}"
            time.sleep(0.005)


class Watch:
    """Every frame on the wire: what was plain, and which IVs came with which SPI."""

    def __init__(self, wire):
        self._wire, self._ends = wire, threading.Event()
        self.frames, self.plain, self.twice = 0, [], []
        self.ivs = {}
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self):
        while not self._ends.is_set():
            frames = self._wire.seen()
            for is_outgoing, frame in frames:
                self._take(frame, is_outgoing)
            if not frames:
                time.sleep(0.002)

    def _take(self, frame, is_outgoing):
        self.frames += 1
        if SHOWN in frame:
            self.plain.append(frame)
        if frame[12:14] != b"\x08\x00" or frame[23] != 50:
            return
        spi, _number, iv = struct.unpack("!IIQ", frame[34:50])
        # The prefix and the low half of the number.
        known = self.ivs.setdefault((spi, iv >> 32), bytearray())
        low = iv & 0xFFFFFFFF
        if len(known) <= low >> 3:
            known.extend(bytes((low >> 3) + 4096 - len(known)))
        if known[low >> 3] >> (low & 7) & 1:
            self.twice.append((spi, iv))
        known[low >> 3] |= 1 << (low & 7)

    def close(self):
        self._ends.set()
        self._thread.join()

    def assert_good(self, what):
        assert not self.plain, f"{len(self.plain)} plain frames: {what}"
        assert not self.twice, f"{len(self.twice)} IVs came twice: {what}"


class Both:
    """Both ends with static keys, of which there is another generation whenever a store was
    lost: peers take no numbers that they have passed."""

    def _equip(self, uxfrm, workers):
        self.generation = 0
        for namespace in (self.left, self.right):
            gateway = Gateway(uxfrm, namespace, workers=workers)
            self.callback(gateway.close)
            self.gateways.append(gateway)
        self.watch = Watch(self.between)
        self.callback(self.watch.close)

    def _lines(self, gateway):
        lines = []
        for association, more in ((STATIC, 0), (STATIC6, 0x2000)):
            association = dataclasses.replace(association, generation=self.generation)
            ends = [dataclasses.replace(end, spi=end.spi + more) for end in self.ends]
            lines += association.lines(*(ends if gateway is self.gateways[0] else reversed(ends)))
        forwarded = [line.replace(" dir in ", " dir fwd ") for line in lines if " dir in " in line]
        return lines + forwarded

    def _more(self, gateway):
        return CONTROLLED

    def start(self, gateway):
        gateway.start(self._lines(gateway), more=self._more(gateway), at_exit="block")

    def rekey(self):
        self.generation += 1
        for gateway in self.gateways:
            gateway.write(self._lines(gateway), more=self._more(gateway), at_exit="block")
            gateway.namespace.run(gateway._binary, "reload")

    def other(self, gateway):
        return self.gateways[gateway is self.gateways[0]]

    def streams(self):
        made = []
        (near, far), (left, right) = self.ends, self.talking
        for family in (4, 6):
            made.append(Stream(left, right, near.inner[family], far.inner[family]))
            made.append(Stream(right, left, far.inner[family], near.inner[family]))
        for stream in made:
            self.callback(stream.close)
            stream.start()
        return made

    def transfer(self):
        with self.talking[0].entered():
            echo.transfer(*(end.inner[4] for end in self.ends), 1 << 14)


class Hosts(Both, topology.PlacedGateways):
    ends = HERE, THERE

    def _build(self, uxfrm, workers):
        super()._build()
        self.talking = self.left, self.right
        self._equip(uxfrm, workers)


class Between(Both, topology.Sites):
    """Inline mode. The kernels forward whatever is not kept from them."""

    ends = LEFT, RIGHT

    def _build(self, uxfrm, workers):
        prerequisite.packet_filter()
        super()._build()
        self.talking = self.left_host, self.right_host
        self._equip(uxfrm, workers)

    def _more(self, gateway):
        return INLINE.format(PACKET if gateway is self.gateways[0] else XDP) + CONTROLLED


def upgrade(both, gateway, dice):
    said = gateway.upgrade(check=False)
    assert "has taken over" in said, f"{said}\n{gateway.log()}"


def kill(both, gateway, dice):
    gateway.kill()
    both.start(gateway)


def stop(both, gateway, dice):
    gateway.stop()
    both.start(gateway)


def lose(both, gateway, dice):
    """A store that is gone, of an earlier time, another gateway's, or cut off. The same keys go
    on for a while, and then there are others."""
    store, kept = gateway.directory / "sequences", gateway.directory / "kept"
    dice.choice([gateway.kill, gateway.stop])()
    how = dice.choice(["gone", "old", "foreign", "cut"])
    if how == "cut":
        file = store / "sequences"
        os.truncate(file, dice.randrange(file.stat().st_size))
    else:
        shutil.rmtree(store)
        if how == "old" and kept.exists():
            shutil.copytree(kept, store)
        if how == "foreign":
            # The other runs, and what it is writing may be gone before it is copied.
            shutil.copytree(both.other(gateway).directory / "sequences", store, ignore=shutil.ignore_patterns("*.new"))
    shutil.rmtree(kept, ignore_errors=True)
    if store.exists():
        shutil.copytree(store, kept)
    both.start(gateway)
    seen = both.watch.frames
    while both.watch.frames < seen + 200:
        time.sleep(0.005)
    both.rekey()


@pytest.mark.parametrize("mode", [Hosts, Between], ids=["host", "inline"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_plain_and_no_iv_twice(workers, mode, uxfrm):
    dice = random.Random(SEED + workers)
    steps = [kill, stop, upgrade, lose] * ROUNDS
    dice.shuffle(steps)
    with mode(uxfrm, workers) as both:
        for gateway in both.gateways:
            both.start(gateway)
        streams = both.streams()
        for number, step in enumerate(steps):
            what = f"step {number} of seed {SEED}, {step.__name__}"
            step(both, dice.choice(both.gateways), dice)
            for stream in streams:
                stream.wait(what)
            both.transfer()
            both.watch.assert_good(what)
        assert both.watch.frames > sum(stream.arrived for stream in streams), "the wire was seen"
