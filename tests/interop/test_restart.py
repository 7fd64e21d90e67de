"""No IV is used twice with a key that outlives the process, seen on the wire. For the network see
topology.UxfrmAndWire.

The keys of batch files are the same after a restart. So sequence numbers, which the IVs come
from, have to go on above all that were on the wire before: after `kill -9` in the middle of
traffic, and without a gap after SIGTERM.
"""

import dataclasses
import socket
import subprocess
import threading
import time

import pytest

import patience
import topology
import wire
from association import CBC_SHA1, COMBINED, GCM_128, Association
from gateway import Gateway
from topology import HERE, THERE

PACKETS = 40
WAIT_SECONDS = patience.SECONDS
IPV4_HEADERS = 14 + 20
IV_BYTES = {"gcm128": 8, "cbc128-sha1": 16, "ctr128-sha1": 8}


@dataclasses.dataclass(frozen=True)
class Sent:
    """What an ESP packet on the wire shows."""

    spi: int
    number: int
    iv: bytes


class Traffic:
    """Datagrams to the far side, one after the other, whatever becomes of them, until the block
    ends."""

    def __init__(self, namespace):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self):
        while not self._ended.wait(0.001):
            try:
                self._socket.sendto(b"counted", (THERE.inner[4], 9))
            except OSError:
                pass  # while no gateway runs, the destination is unreachable

    def __enter__(self):
        self._socket.bind((HERE.inner[4], 0))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def network(uxfrm):
    with topology.UxfrmAndWire() as made:
        yield made


@pytest.fixture
def gateway(uxfrm, network):
    made = Gateway(uxfrm, network.here)
    yield made
    made.close()


@pytest.mark.parametrize("transform", [GCM_128, CBC_SHA1, COMBINED["ctr128-sha1"]], ids=lambda each: each.name)
def test_no_iv_is_used_twice(transform, gateway, network):
    association = Association(transform, "tunnel", 4, 4)
    lines = association.lines(HERE, THERE)
    runs = [
        run_until(gateway.kill, gateway, network, association, lines),
        run_until(gateway.kill, gateway, network, association, lines),
        run_until(gateway.stop, gateway, network, association, lines),
        run_until(gateway.stop, gateway, network, association, lines),
    ]
    for earlier, later in zip(runs, runs[1:]):
        assert last(earlier) < later[0].number, "the numbers went back"
    assert runs[3][0].number == last(runs[2]) + 1, "SIGTERM lost numbers"
    everything = [packet for run in runs for packet in run]
    assert len({packet.number for packet in everything}) == len(everything), "a sequence number was used twice"
    assert len({packet.iv for packet in everything}) == len(everything), "an IV was used twice"


def test_a_new_key_begins_anew(gateway, network):
    """And needs no other SPI: so a state whose numbers are used up is mended by a new key in its
    line."""
    old = Association(GCM_128, "tunnel", 4, 4)
    before = run_until(gateway.kill, gateway, network, old, old.lines(HERE, THERE))
    new = dataclasses.replace(old, extra="replay-window 64")  # another case, another key
    after = run_until(gateway.kill, gateway, network, new, new.lines(HERE, THERE))
    again = run_until(gateway.kill, gateway, network, old, old.lines(HERE, THERE))
    assert after[0].number == 1
    assert again[0].number > last(before), "the old key's numbers were forgotten"


def test_two_gateways_do_not_share_used_numbers(uxfrm, gateway, network):
    """Both would send with the keys of one configuration, and each from the number where the
    other began."""
    lines = Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE)
    gateway.start(lines)
    apart = network.namespace("apart")
    again = [str(uxfrm), "run", str(gateway.directory / "config.toml")]
    started = subprocess.run(
        ["ip", "netns", "exec", apart.name, "timeout", str(WAIT_SECONDS), *again], capture_output=True, text=True, check=False
    )
    assert started.returncode == 1, started
    assert f"used sequence numbers in {gateway.directory / 'sequences'}: another uxfrm that runs has it" in started.stderr
    assert "another uxfrm runs in this network namespace" in network.here.run(*again, check=False)
    gateway.kill()
    gateway.start(lines)
    gateway.stop()


def run_until(end, gateway, network, association, lines):
    """One run of the gateway under traffic, ended in its middle; all ESP packets that it put on
    the wire."""
    network.far.seen()
    with Traffic(network.here):
        gateway.start(lines)
        frames = [next_esp(network.far) for _ in range(PACKETS)]
        end()
    frames += [frame for outgoing, frame in network.far.seen() if not outgoing and wire.protocol(frame) == "esp"]
    packets = [parsed(frame, IV_BYTES[association.transform.name]) for frame in frames]
    assert {packet.spi for packet in packets} == {int(association.spi_of(THERE), 16)}
    return packets


def next_esp(far):
    deadline = time.monotonic() + WAIT_SECONDS
    while (frame := far.next_frame(deadline)) is not None:
        if wire.protocol(frame) == "esp":
            return frame
    raise AssertionError(f"no ESP on the wire in {WAIT_SECONDS} s")


def parsed(frame, iv_bytes):
    esp = frame[IPV4_HEADERS:]
    return Sent(int.from_bytes(esp[:4], "big"), int.from_bytes(esp[4:8], "big"), esp[8 : 8 + iv_bytes])


def last(packets):
    return max(packet.number for packet in packets)
