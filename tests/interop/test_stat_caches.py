"""`uxfrm stat --caches`: a line for each worker, direction and family that had traffic, whose
numbers are those of the packets that were sent; and each cache is what `[cache]` says."""

import contextlib
import socket
import time

import pytest

import echo
import patience
import topology
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from topology import HERE, THERE

ASSOCIATIONS = (Association(GCM_128, "tunnel", 4, 4), Association(GCM_128, "tunnel", 6, 6, reqid=2))
WAIT_SECONDS = patience.SECONDS
HEAD = "worker direction family entries room bytes hits misses stale evicted bypassed".split()
# Of what is kept beside the table of flows: policies that packets met, and notes of flows while a
# cache stands aside.
BESIDE = 64 << 10
LOOKED_UP = ("hits", "misses", "stale", "bypassed")
OUT_4 = (0, "out", 4)
EITHER_WAY = [(direction, family) for direction in ("out", "in") for family in (4, 6)]


class Ends(contextlib.ExitStack):
    """Two gateways with a tunnel for each family; the left one's caches are looked at."""

    def __init__(self, uxfrm):
        super().__init__()
        self._uxfrm = uxfrm
        self._network = self.enter_context(topology.TwoGateways("wire0"))
        for namespace, side in ((self._network.left, HERE), (self._network.right, THERE)):
            topology.place(namespace, "wire0", side)
        self._right = self._gateway(self._network.right)
        self._right.start(self._lines(THERE, HERE))

    def start(self, cache, workers=1):
        left = self._gateway(self._network.left, workers)
        left.start(self._lines(HERE, THERE), more=cache + CONTROLLED)
        return left

    def caches(self):
        """The table, by worker, direction and family."""
        text = self._network.left.run(str(self._uxfrm), "stat", "--caches")
        head, *lines = (line.split("\t") for line in text.splitlines())
        assert head == HEAD
        return {
            (int(worker), direction, int(family.removeprefix("ipv"))): dict(zip(HEAD[3:], map(int, counts), strict=True))
            for worker, direction, family, *counts in lines
        }

    def wait_for(self, expected):
        """The table in which `expected` holds; it is about a second behind."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not expected(caches := self.caches()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert expected(caches), caches
        return caches

    @contextlib.contextmanager
    def flows(self, family, count=1):
        """Sockets, each of a port of its own."""
        kind = {4: socket.AF_INET, 6: socket.AF_INET6}[family]
        with contextlib.ExitStack() as stack:
            with self._network.left.entered():
                sockets = [stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM)) for _ in range(count)]
            for each in sockets:
                each.bind((HERE.inner[family], 0))
                each.connect((THERE.inner[family], echo.PORT))
                each.settimeout(WAIT_SECONDS)
            yield sockets

    def converse(self, family, rounds, count=1):
        """Each packet is answered before the next leaves, so that each is looked up alone."""
        with self.flows(family, count) as sockets:
            converse(sockets, rounds)

    def _gateway(self, namespace, workers=1):
        made = Gateway(self._uxfrm, namespace, workers=workers)
        self.callback(made.close)
        return made

    @staticmethod
    def _lines(here, there):
        return [line for association in ASSOCIATIONS for line in association.lines(here, there)]


def converse(sockets, rounds):
    for _ in range(rounds):
        for each in sockets:
            each.send(echo.MARKER)
            assert each.recv(2048) == echo.MARKER


def looked_up(counts):
    """Packets, whatever became of them; `counts` may be missing."""
    return sum(counts[name] for name in LOOKED_UP) if counts else 0


@pytest.fixture
def ends(uxfrm):
    with Ends(uxfrm) as made:
        yield made


def cache(**modes):
    """TOML: `out4="on"` is the outbound IPv4 cache's mode or its other words."""
    lines = []
    for table, short in (("outbound", "out"), ("inbound", "in")):
        words = {family: modes.get(f"{short}{family}", 'mode = "on"') for family in (4, 6)}
        lines.append(f"[cache.{table}]")
        lines.extend(f"ipv{family} = {{ {text} }}" for family, text in words.items())
    return "\n" + "\n".join(lines) + "\n"


def test_both_directions_and_families_count_what_passed(ends):
    ends.start(cache())
    assert ends.caches() == {}, "no line for what had no traffic"
    ends.converse(4, 20)
    ends.converse(6, 30)
    caches = ends.wait_for(lambda caches: sum(map(looked_up, caches.values())) == 100)
    for direction, family in EITHER_WAY:
        counts, packets = caches[0, direction, family], {4: 20, 6: 30}[family]
        # A flow is let in with its second packet.
        wanted = {"entries": 1, "hits": packets - 2, "misses": 2, "stale": 0, "evicted": 0, "bypassed": 0}
        assert {name: counts[name] for name in wanted} == wanted, (direction, family)
        assert counts["bytes"] >= counts["room"] * 16 > 0


@pytest.mark.parametrize(("direction", "family"), EITHER_WAY)
def test_a_cache_that_is_off_holds_nothing_and_the_others_go_on(direction, family, ends):
    ends.start(cache(**{f"{direction}{family}": 'mode = "off"'}))
    ends.converse(4, 20)
    ends.converse(6, 20)
    caches = ends.wait_for(lambda caches: sum(map(looked_up, caches.values())) == 80)
    off = caches.pop((0, direction, family))
    assert all(counts["hits"] == 18 for counts in caches.values())
    wanted = {"entries": 0, "hits": 0, "misses": 0, "stale": 0, "evicted": 0, "bypassed": 20}
    assert {name: off[name] for name in wanted} == wanted
    assert off["room"] == 16, "it has no more than every cache has before its first packet: one set"
    assert off["bytes"] <= 16 * 66 + BESIDE


def test_auto_remembers_too(ends):
    ends.start(cache(out4='mode = "auto"', in4='mode = "auto"'))
    ends.converse(4, 20)
    caches = ends.wait_for(lambda caches: sum(map(looked_up, caches.values())) == 40)
    assert [caches[0, direction, 4]["hits"] for direction in ("out", "in")] == [18, 18]


@pytest.mark.parametrize(
    ("selector", "stale"),
    [
        ("src 10.77.0.0/24 dst 10.78.0.0/24", 0),
        (f"src 10.0.0.0/8 dst {THERE.inner[4]} proto udp dport 9", 1),
        ("src 10.0.0.0/8 dst 10.0.0.0/8 proto udp dport 9", 1),
    ],
)
def test_a_new_policy_makes_answers_stale_once_that_it_may_concern(selector, stale, ends):
    gateway = ends.start(cache())
    with ends.flows(4) as sockets:
        converse(sockets, 5)
        gateway.ip(f"xfrm policy add {selector} dir out action block")
        converse(sockets, 5)
    counts = ends.wait_for(lambda caches: looked_up(caches.get(OUT_4)) == 10)[OUT_4]
    assert (counts["misses"], counts["stale"], counts["hits"], counts["entries"]) == (2, stale, 8 - stale, 1)


@pytest.mark.parametrize("room", ["entries = 16", "memory = 600"])
def test_a_small_cache_evicts_and_never_grows(room, ends):
    ends.start(cache(out4=f'mode = "on", {room}'))
    with ends.flows(4, count=100) as sockets:
        for each in sockets * 2:
            converse([each], 3)
    counts = ends.wait_for(lambda caches: looked_up(caches.get(OUT_4)) == 600)[OUT_4]
    assert counts["room"] == 16 and counts["entries"] <= 16 and counts["bytes"] <= 600 + BESIDE
    assert counts["evicted"] > 0


def test_ever_new_flows_pass_by_the_cache(ends):
    ends.start(cache(out4='mode = "auto"'))
    with ends.flows(4, count=8) as sockets:

        def scan():
            for each in sockets:
                for port in range(10_000, 14_000):
                    each.connect((THERE.inner[4], port))
                    with contextlib.suppress(ConnectionRefusedError):  # the peer's ICMP comes to the next call
                        each.send(b"")

        deadline = time.monotonic() + WAIT_SECONDS
        while not ends.caches().get(OUT_4, {}).get("bypassed") and time.monotonic() < deadline:
            scan()
    assert ends.caches()[OUT_4]["bypassed"] > 0


def test_each_worker_has_caches_of_its_own(ends):
    ends.start(cache(), workers=2)
    ends.converse(4, 10, count=40)
    caches = ends.wait_for(lambda caches: sum(looked_up(counts) for way, counts in caches.items() if way[1] == "out") == 400)
    out = {worker: counts for (worker, direction, _), counts in caches.items() if direction == "out"}
    assert set(out) == {0, 1}
    assert sum(counts["entries"] for counts in out.values()) == 40
