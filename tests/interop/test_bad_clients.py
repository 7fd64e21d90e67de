"""Clients that send garbage, halves, a million requests, or never read: they get errors and hurt
nobody.

They speak to the control socket itself, without the library that behaves. Meanwhile probes pass
through the tunnel, none of which may be lost, and another client is answered.
"""

import collections
import contextlib
import os
import random
import socket
import struct
import threading

import pytest

import probes
from test_control import PROTECTED, Controlled
from topology import HERE, THERE

NAME = b"\0uxfrm/xfrm"
REQUEST, DUMP, ERROR = 0x1, 0x300, 2
NEW_SA, GET_SA, NEW_POLICY, GET_POLICY, DONE = 0x10, 0x12, 0x13, 0x15, 3
NEW_SAD_INFO, GET_SAD_INFO, SET_DEFAULT = 0x22, 0x23, 0x27
EFFECTIVE = [0x1C, 0x1D, SET_DEFAULT]  # FLUSHSA, FLUSHPOLICY: random bytes after these may be a valid request
GREETING, HELLO, ASK, WELCOME, OVERRUN = b"uxfrm/1\n", 1, 2, 3, 5
ALL_GROUPS = 0x7FFFFFFF
MEGABYTES_MORE = 64
MILLION = 1_000_000


@pytest.fixture(scope="module")
def network(uxfrm):
    with Controlled(uxfrm) as made:
        made.protect(PROTECTED)
        made.left.ping(HERE.inner[4], THERE.inner[4])
        yield made


@contextlib.contextmanager
def unhurt(network):
    """Nothing is lost in the tunnel meanwhile, the gateway does not grow without bounds, and
    others are answered."""
    before = network.here.memory()
    passing = probes.Probes(network.left, HERE.inner[4], THERE.inner[4])
    try:
        yield
        assert "SAD count" in network.ip("xfrm state count")
    finally:
        lost = passing.lost()
    assert passing.sent > 0 and lost == []
    assert network.here.memory() < before + MEGABYTES_MORE * 1024
    assert network.here.running()


@contextlib.contextmanager
def client(network, groups=None):
    with network.left.entered():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection:
        connection.settimeout(20)
        with network.left.entered():
            connection.connect(NAME)
        if groups is not None:
            connection.send(GREETING + struct.pack("=5I", ASK, os.getpid(), groups, 0, 0))
            assert greeting_kind(connection.recv(1 << 16)) == WELCOME
        yield connection


def message(kind, flags=REQUEST, body=b"", sequence=1):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def greeting_kind(datagram):
    return struct.unpack_from("=I", datagram, 8)[0] if datagram.startswith(GREETING) else None


def test_garbage_and_halves(network):
    chance = random.Random(3)
    kinds = [kind for kind in range(0x10, 0x2C) if kind not in EFFECTIVE]
    whole = message(NEW_SA, body=bytes(chance.randrange(256) for _ in range(0xE0)))
    with unhurt(network):
        for _ in range(20):
            with client(network) as connection:
                heard = collections.Counter()
                drain = threading.Thread(target=swallow, args=(connection, heard))
                drain.start()
                for _ in range(200):
                    connection.send(chance.randbytes(chance.randrange(1, 400)))
                    connection.send(whole[: chance.randrange(1, len(whole))])
                    connection.send(message(chance.choice(kinds), chance.randrange(1 << 16), chance.randbytes(chance.randrange(300))))
                    connection.send(GREETING + chance.randbytes(chance.choice([0, 7, 20, 200])))
                connection.shutdown(socket.SHUT_WR)
                drain.join()
                assert heard[ERROR] > 0


def swallow(connection, heard):
    """Counts datagrams of each kind until the gateway closes."""
    with contextlib.suppress(ConnectionError):
        while datagram := connection.recv(1 << 16):
            kind = OVERRUN if greeting_kind(datagram) else struct.unpack_from("=H", datagram, 4)[0]
            heard[kind] += 1


def test_clients_that_leave_in_the_middle(network):
    with unhurt(network):
        for _ in range(500):
            with client(network) as connection:
                connection.send(message(GET_SA, REQUEST | DUMP))
        with contextlib.ExitStack() as silent:
            for _ in range(200):
                silent.enter_context(client(network))
            assert "SAD count" in network.ip("xfrm state count")


def test_a_dump_goes_on_though_its_client_leaves_a_group(network, tmp_path):
    """More than its socket holds: the client leaves the group while the gateway waits for it to
    read."""
    count = 3000
    lines = (f"xfrm policy add src 10.77.{number // 256}.{number % 256}/32 dir in priority 7 action block" for number in range(count))
    (tmp_path / "many").write_text("\n".join(lines))
    network.ip(f"-batch {tmp_path / 'many'}")
    kinds = collections.Counter()
    with client(network, ALL_GROUPS) as connection:
        connection.send(message(GET_POLICY, REQUEST | DUMP))
        connection.send(GREETING + struct.pack("=5I", HELLO, os.getpid(), 0, 0, 0))
        while kinds[DONE] == 0:
            datagram = connection.recv(1 << 16)
            while datagram:
                length, kind = struct.unpack_from("=IH", datagram)
                kinds[kind] += 1
                datagram = datagram[length:]
    (tmp_path / "many").write_text((tmp_path / "many").read_text().replace("add", "delete").replace(" priority 7 action block", ""))
    network.ip(f"-batch {tmp_path / 'many'}")
    assert kinds[NEW_POLICY] >= count


def test_a_million_requests(network):
    """A thousand to a datagram, read as they come: all are answered, or it is told of the
    overrun."""
    together = 1000
    many = b"".join(message(GET_SAD_INFO, body=bytes(4), sequence=number) for number in range(together))
    with unhurt(network), client(network) as connection:
        heard = collections.Counter()
        drain = threading.Thread(target=swallow, args=(connection, heard))
        drain.start()
        for number in range(MILLION // together):
            connection.send(many)
            if number == 100:
                assert "SAD count" in network.ip("xfrm state count")
        connection.shutdown(socket.SHUT_WR)
        drain.join()
        assert heard[OVERRUN] > 0 or heard[NEW_SAD_INFO] == MILLION


def test_a_client_that_never_reads(network):
    """It asks until nobody takes its requests any more."""
    with unhurt(network), client(network) as connection:
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):
            for _ in range(100_000):
                connection.send(message(GET_SA, REQUEST | DUMP))
        assert "SAD count" in network.ip("xfrm state count")


def test_a_listener_that_does_not_read_is_told(network):
    """Of the overrun, once it reads, and then of what happens after that."""
    nothing = message(SET_DEFAULT, body=bytes(3) + b"\0")
    with unhurt(network), client(network, ALL_GROUPS) as listener, client(network) as speaker:
        for _ in range(50):
            speaker.send(nothing * 1000)
        speaker.send(message(GET_SAD_INFO, body=bytes(4), sequence=77))
        assert sequence(speaker.recv(1 << 16)) == 77
        while greeting_kind(listener.recv(1 << 16)) != OVERRUN:
            pass
        identity = f"src {HERE.outer[4]} dst {THERE.outer[4]} proto esp spi 0x4444"
        network.ip(f"xfrm state add {identity} mode transport aead rfc4106(gcm(aes)) 0x{bytes(20).hex()} 128")
        network.ip(f"xfrm state delete {identity}")
        while struct.unpack_from("=H", listener.recv(1 << 16), 4)[0] != NEW_SA:
            pass


def sequence(datagram):
    return struct.unpack_from("=I", datagram, 8)[0]
