"""Unmodified `ip` drives a running gateway through `uxfrm exec`: requests, answers, and what they
do to traffic.

The network is test_lifecycle's: two namespaces that reach each other without uxfrm, so that what
is not protected is seen. Policies are listed as the machine's own kernel lists them, in a third
namespace without uxfrm.
"""

import contextlib
import dataclasses
import ipaddress
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import pytest

import echo
import listener
import patience
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from namespace import UNANSWERED_SECONDS
from stranger import FILL, stranger
from test_restart import IV_BYTES, parsed
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)


class Controlled(topology.PlacedGateways):
    """Both gateways run without states or policies."""

    def _build(self, uxfrm):
        super()._build()
        self._uxfrm = uxfrm
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        self.here.start([])
        self.there.start([])

    def ip(self, words, namespace=None, check=True):
        """`ip` with uxfrm in the kernel's place; the left side unless another is named."""
        namespace = namespace or self.left
        return namespace.run(str(self._uxfrm), "exec", "--", "ip", *words.split(), check=check)

    def add(self, lines, namespace=None):
        for line in lines:
            self.ip(line, namespace)

    def protect(self, association):
        self.add(association.lines(HERE, THERE))
        self.add(association.lines(THERE, HERE), self.right)

    def esp(self, spi):
        """The ESP packets that the left side has sent with an SPI."""
        sent = [frame for outgoing, frame in self.between.seen() if outgoing and wire.protocol(frame) == "esp"]
        packets = [parsed(frame, IV_BYTES[GCM_128.name]) for frame in sent]
        return [packet for packet in packets if packet.spi == spi]


@pytest.fixture
def network(uxfrm):
    with Controlled(uxfrm) as made:
        yield made


def test_traffic_flows_through_what_programs_add(network):
    network.protect(PROTECTED)
    network.between.seen()
    network.left.ping(HERE.inner[4], THERE.inner[4])
    network.right.ping(THERE.inner[4], HERE.inner[4])
    with network.left.entered():
        echo.transfer(HERE.inner[4], THERE.inner[4], 100_000)
    wire.assert_no_plaintext(network.between.seen())
    network.here.stop()
    network.there.stop()


def test_a_policy_is_in_force_when_its_answer_is_out(network):
    """Not some time later: each round adds it, sends a packet at once, and takes it away again."""
    out, _ = PROTECTED.policies(HERE, THERE)
    with network.left.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.bind((HERE.inner[4], 0))
        for _ in range(10):
            network.ip(out)
            network.between.seen()
            sender.sendto(echo.MARKER, (THERE.inner[4], 9))
            wire.assert_no_plaintext(network.between.seen())
            network.ip(f"xfrm policy delete {' '.join(out.split()[3:9])}")
            sender.sendto(echo.MARKER, (THERE.inner[4], 9))
            with pytest.raises(AssertionError, match="in the clear"):
                wire.assert_no_plaintext(network.between.seen())


def test_a_pool_has_one_route_and_who_leaves_it_takes_its_own_way(network):
    """Policies that are there at the start share a route. Each goes and comes back for itself,
    and no other packet leaves plain meanwhile."""
    pool = [f"10.2.0.{last}" for last in range(8)]
    out = [f"xfrm policy add src {HERE.inner[4]} dst {address} dir out" for address in pool]
    template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid {PROTECTED.reqid} mode tunnel"
    network.left.ip(f"route add 10.2.0.0/24 via {THERE.outer[4]}")
    network.here.stop()
    network.here.start([*PROTECTED.states(HERE, THERE), *(f"{words} {template}" for words in out)])

    def prefixes():
        routes = network.left.ip("route show table 30000").splitlines()
        return {route.removeprefix("unreachable ").split()[0] for route in routes}

    def plain():
        """Who of the pool is sent to in the clear."""
        network.between.seen()
        sent = []
        with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((HERE.inner[4], 0))
            for address in pool:
                sender.sendto(echo.MARKER, (address, 9))

        def have_left():
            sent.extend(frame for outgoing, frame in network.between.seen() if outgoing)
            return len([frame for frame in sent if wire.protocol(frame) != "housekeeping"]) >= len(pool)

        patience.wait_for(have_left)
        return [address for address in pool if any(socket.inet_aton(address) == frame[30:34] for frame in sent)]

    assert prefixes() == {"10.2.0.0/29"} and plain() == []
    network.ip(out[5].replace("add", "delete"))
    assert prefixes() == {"10.2.0.0/30", "10.2.0.4", "10.2.0.6/31"} and plain() == [pool[5]]
    network.ip(f"{out[5]} {template}")
    assert plain() == []
    network.here.stop()


def test_nobody_else_is_refused_when_a_block_of_one_port_comes(network):
    """The route to the TUN is there before the one beneath it, which refuses whatever goes to
    the destination."""
    with listener.of_routes(network.left, "ip", "monitor", "route", stdout=subprocess.PIPE, text=True) as monitor:
        network.ip("xfrm policy add dst 10.2.0.7/32 proto tcp dport 25 dir out action block")
        first, second = (monitor.stdout.readline() for _ in range(2))
    assert first.startswith("10.2.0.7 dev uxfrm0 ") and second.startswith("unreachable 10.2.0.7 ")


def test_nobody_is_refused_while_neighbours_leave_a_pool(network):
    """What had one route gets others: whoever stays finds a way to the TUN all the time."""
    pool = [f"10.2.0.{last}" for last in range(256)]
    out = [f"xfrm policy add src {HERE.inner[4]} dst {address} dir out" for address in pool]
    template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid {PROTECTED.reqid} mode tunnel"
    network.left.ip(f"route add 10.2.0.0/24 via {THERE.outer[4]}")
    refused, stop = [], threading.Event()

    def send(sender, addresses):
        while not stop.is_set():
            for address in addresses:
                try:
                    sender.sendto(echo.MARKER, (address, 9))
                except OSError as error:
                    refused.append((address, error.errno))

    for _ in range(5):
        network.here.stop()
        network.here.start([*PROTECTED.states(HERE, THERE), *(f"{words} {template}" for words in out)])
        with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((HERE.inner[4], 0))
            sending = threading.Thread(target=send, args=(sender, pool[::32]))
            stop.clear()
            sending.start()
            try:
                for last in (85, 171, 7):
                    network.ip(out[last].replace("add", "delete"))
            finally:
                stop.set()
                sending.join()
    assert refused == []
    network.here.stop()


def test_kill_9_leaves_no_way_in_the_clear(network):
    network.protect(PROTECTED)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    network.between.seen()
    network.here.kill()
    with pytest.raises(RuntimeError):
        network.left.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)
    wire.assert_no_plaintext(network.between.seen())


def test_a_static_key_meets_no_iv_twice(network):
    """Deleted and added again, flushed and added again, killed and added again: numbers go on."""
    network.protect(PROTECTED)
    state, spi = PROTECTED.state(HERE, THERE), int(PROTECTED.spi_of(THERE), 16)
    name = f"src {HERE.outer[4]} dst {THERE.outer[4]} proto esp spi {PROTECTED.spi_of(THERE)}"
    rounds = []

    def send():
        network.between.seen()
        network.left.run("ping", "-q", "-c", "5", "-i", "0.02", "-W", "1", "-I", HERE.inner[4], THERE.inner[4], check=False)
        rounds.append(network.esp(spi))

    send()
    network.ip(f"xfrm state delete {name}")
    network.ip(state)
    send()
    network.ip("xfrm state flush")
    network.add(PROTECTED.states(HERE, THERE))
    send()
    network.here.kill()
    network.here.start([])
    network.add(PROTECTED.lines(HERE, THERE))
    send()
    network.here.stop()
    network.here.start([])
    network.add(PROTECTED.lines(HERE, THERE))
    send()

    packets = [packet for each in rounds for packet in each]
    assert [len(each) for each in rounds] == [5] * 5
    assert len({packet.iv for packet in packets}) == len(packets), "an IV was used twice"
    numbers = [packet.number for packet in packets]
    assert numbers[:15] == list(range(1, 16)), "what is deleted ends exactly"
    assert numbers[15] > 15 and numbers[20] == numbers[19] + 1, "a crash leaves a gap, SIGTERM none"


POLICIES = [
    "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 7 tmpl src 10.9.0.1 dst 10.9.0.2 proto esp reqid 5 mode tunnel",
    "xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in tmpl src 10.9.0.2 dst 10.9.0.1 proto esp mode tunnel level use",
    "xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd ptype sub action block",
    "xfrm policy add src fd01::/64 dst fd02::/64 proto udp sport 5 dport 6 dir in mark 7 mask 0xff action block",
    "xfrm policy add src 0.0.0.0/0 dst 10.7.0.0/24 proto icmp type 8 code 0 dir out flag icmp limit time-hard 1000",
]


def test_policies_read_as_the_kernel_writes_them(network):
    """List, get, update, delete and flush, text for text beside the machine's own kernel."""
    kernel = network.namespace("kernel")
    ask = [
        "xfrm policy",
        "xfrm policy list dir out",
        "xfrm policy list ptype sub",
        "xfrm policy get src 10.1.0.0/16 dst 10.2.0.0/16 dir out",
        "-o xfrm policy",
        "xfrm policy count",
        "xfrm policy getdefault",
    ]

    def compare():
        for words in ask:
            ours, theirs = network.ip(words, check=False), kernel.run("ip", *words.split(), check=False)
            assert ours == theirs, words

    steps = POLICIES + [
        "xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 9 action block",
        POLICIES[0],  # there already
        "xfrm policy delete src 10.9.9.0/24 dst 10.2.0.0/16 dir out",  # not there
        "xfrm policy delete src 10.1.0.0/16 dst 10.2.0.0/16 dir out",
        "xfrm policy setdefault in block",
        "xfrm policy flush ptype sub",
        "xfrm policy flush",
    ]
    for words in steps:
        ours, theirs = network.ip(words, check=False), kernel.run("ip", *words.split(), check=False)
        assert ours == theirs, words
        compare()


def test_states_are_added_found_counted_updated_and_flushed(network):
    state = PROTECTED.state(HERE, THERE)
    name = f"src {HERE.outer[4]} dst {THERE.outer[4]} proto esp spi {PROTECTED.spi_of(THERE)}"
    network.ip(state)
    listed = network.ip("xfrm state")
    assert listed == network.ip(f"xfrm state get {name}")
    assert f"proto esp spi 0x{int(PROTECTED.spi_of(THERE), 16):08x} reqid 1 mode tunnel" in listed
    assert "oseq 0x0" in listed, "nothing was sent"
    assert network.ip("xfrm state count") == "\t SAD count 1\n"
    assert "File exists" in network.ip(state, check=False)
    network.ip(state.replace(" add ", " update ") + " limit packet-hard 77")
    assert "hard 77(packets)" in network.ip("-s xfrm state").replace("hard 77 (packets)", "hard 77(packets)")
    allocated = network.ip(
        f"xfrm state allocspi src {HERE.outer[4]} dst {THERE.outer[4]} proto esp mode tunnel min 500 max 500"
    )
    assert "spi 0x000001f4" in allocated
    network.ip(f"xfrm state delete {name}")
    assert "No such process" in network.ip(f"xfrm state delete {name}", check=False)
    network.ip("xfrm state flush")
    assert network.ip("xfrm state count") == "\t SAD count 0\n"


def test_a_key_manager_says_how_long_a_reserved_spi_waits(network):
    """charon writes 165 s when it starts: as long as it sends its messages again before it gives
    up."""
    reserve = f"ip xfrm state allocspi src {THERE.outer[4]} dst {HERE.outer[4]} proto esp mode tunnel reqid 7"

    def waits(preparation):
        script = f"{preparation}; {reserve} >/dev/null; ip -s xfrm state"
        shown = network.left.run(str(network._uxfrm), "exec", "--", "sh", "-c", script)
        network.ip("xfrm state flush")
        return int(re.search(r"expire add: soft 0\(sec\), hard (\d+)\(sec\)", shown)[1])

    path = "/proc/sys/net/core/xfrm_acq_expires"
    kernels = network.left.run("cat", path)
    assert waits("true") == 30
    assert waits(f"echo 165 > {path}") == 165
    assert waits("true") == 165, "for all programs"
    assert waits(f"echo nonsense > {path}; echo 0 > {path}") == 165
    assert network.left.run("cat", path) == kernels, "the kernel's own stays"


def test_the_kernels_selftest_of_ipsec(network):
    """What `kci_test_ipsec` of the kernel's rtnetlink.sh does: add, list, count, get, delete and
    flush, and a monitor that sees it."""
    near, far = "192.168.123.1", "192.168.123.2"
    key = "aead rfc4106(gcm(aes)) 0x3132333435363738393031323334353664636261 128"
    network.left.ip(f"addr add {near}/32 dev lo")
    with monitor(network) as lines:
        identity = f"proto esp src {near} dst {far} spi 0x07"
        network.ip(
            f"x s add {identity} mode transport reqid 0x07 replay-window 32 {key} sel src {near}/24 dst {far}/24"
        )
        assert lines_with_both(network.ip("x s list"), near, far) == 2
        assert "SAD count 1" in network.ip("x s count")
        assert lines_with_both(network.ip(f"x s get {identity}"), near, far) == 2
        network.ip(f"x s delete {identity}")
        assert network.ip("x s list") == ""

        selector = f"dir out src {near}/24 dst {far}/24"
        network.ip(f"x p add {selector} tmpl proto esp src {near} dst {far} spi 0x07 mode transport reqid 0x07")
        assert lines_with_both(network.ip("x p list"), near, far) == 2
        assert "SPD IN  0 OUT 1 FWD 0" in network.ip("x p count")
        assert lines_with_both(network.ip(f"x p get {selector}"), near, far) == 2
        network.ip(f"x p delete {selector}")
        assert network.ip("x p list") == ""

        network.ip(f"x s add {identity} mode transport reqid 0x07 {key}")
        network.ip("x s flush")
        network.ip("x p flush")
        assert network.ip("x s list") == network.ip("x p list") == ""
        patience.wait_for(lambda: lines_with_both(lines(), near, far) >= 6)
    network.here.stop()


def test_listeners_hear_of_counters(network):
    """By the kernel's own thresholds: more than two packets, or any and a second."""
    network.protect(PROTECTED)
    with monitor(network) as lines:
        assert "Async event" not in lines()
        network.left.ping(HERE.inner[4], THERE.inner[4])
        patience.wait_for(lambda: "replay update" in lines() and f"SPI {PROTECTED.spi_of(THERE)}" in lines())
    network.here.stop()


@contextlib.contextmanager
def monitor(network):
    """`ip xfrm monitor` in the background; gives what it has printed so far."""
    path = network.here.directory / "monitor"
    command = [network._uxfrm, "exec", "--", "stdbuf", "-oL", "ip", "xfrm", "monitor"]
    with open(path, "w") as out:
        with listener.of_gateway(network.left, network._uxfrm, *command, stdout=out, stderr=subprocess.STDOUT):
            yield path.read_text


def lines_with_both(text, near, far):
    return sum(near in line and far in line for line in text.splitlines())


def test_what_the_kernel_does_not_take_is_refused_and_ends_nothing(network):
    """The TUN is down, so no route leads there: the policy is refused in the kernel's words, and
    is not there."""
    out, _ = PROTECTED.policies(HERE, THERE)
    network.left.ip("link set uxfrm0 down")
    refused = network.ip(out, check=False)
    assert "route 10.2.0.1/32" in refused and "Network is down" in refused, refused
    assert network.ip("xfrm policy") == ""
    network.left.ip("link set uxfrm0 up")
    network.protect(PROTECTED)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    network.here.stop()


USER, STRANGER = 65534, 1


@pytest.mark.parametrize("kind", ["abstract", "path", "stranger"])
def test_who_may_use_the_control_socket(network, uxfrm, kind):
    """Root, and the user whom the configuration names; nobody else, and for an abstract name
    nobody of another network namespace. So it is where a stranger has the name."""
    network.here.stop()
    with stranger(network.left, "listens") if kind == "stranger" else contextlib.nullcontext():
        who_may_use_it(network, uxfrm, kind)


def who_may_use_it(network, uxfrm, kind):
    # Where other users may read: the repository and pytest's directories may be root's alone.
    with tempfile.TemporaryDirectory(prefix="uxfrm-") as place:
        os.chmod(place, 0o755)
        binary = shutil.copy(uxfrm, place)
        path = f"{place}/control"
        named = f'socket = "{path}"\n' if kind == "path" else ""
        network.here.start([], more=f"[control]\n{named}user = {USER}\n")

        def ask(user, namespace=network.left):
            as_user = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
            where = ["-control", path] if kind == "path" else []
            return namespace.run(*as_user, binary, "xfrm", *where, "state", "count", check=False)

        assert ask(0) == ask(USER) == "\t SAD count 0\n"
        refusals = {
            "abstract": "answers only root and the user",
            "path": "Permission denied",
            "stranger": "neither root nor you, has its name",
        }
        assert refusals[kind] in ask(STRANGER)
        if kind == "abstract":
            assert "no uxfrm runs in this network namespace" in ask(0, network.namespace("apart"))
        network.here.stop()


def test_a_peer_that_moved_is_told_of_and_fills_no_log(network):
    """It comes from another port than its state says, with each packet, and nobody says where it
    is now."""
    moved = dataclasses.replace(PROTECTED, extra="encap espinudp 4500 4500 0.0.0.0")
    network.protect(moved)
    network.ip(f"xfrm state delete src {THERE.outer[4]} dst {HERE.outer[4]} proto esp spi {moved.spi_of(HERE)}")
    network.ip(moved.state(THERE, HERE).replace("encap espinudp 4500", "encap espinudp 4499"))
    with monitor(network) as heard:
        network.left.ping(HERE.inner[4], THERE.inner[4], 20)
        patience.wait_for(lambda: "4499" in heard())
    assert network.here.log().count("apping") == 0, network.here.log()


LISTENS = """
import socket
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(b"\\0uxfrm/xfrm")
listener.listen()
print("listening", flush=True)
while True:
    print(listener.accept()[0].recv(65536), flush=True)
"""


def test_who_only_has_the_gateways_name_is_told_nothing(network, uxfrm):
    """While no gateway runs anybody may take its name, and key managers would send their keys
    there."""
    network.here.stop()
    as_user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    with network.left.entered():
        stranger = subprocess.Popen([*as_user, "/usr/bin/python3", "-c", LISTENS], stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdout.readline() == "listening\n"
        state = PROTECTED.state(HERE, THERE).removeprefix("xfrm ").split()
        for command in [["xfrm", *state], ["exec", "--", "ip", "xfrm", *state], ["dev", "show"], ["link", "show"]]:
            said = network.left.run(str(uxfrm), *command, check=False)
            assert f"user {USER}, who is neither root nor you, has its name" in said, said
    finally:
        stranger.terminate()
        heard, _ = stranger.communicate()
    assert heard.replace("b''\n", "") == ""


LISTENS_AT = LISTENS.replace('b"\\0uxfrm/xfrm"', "__import__('sys').argv[1]").replace(
    "listener.listen()", "listener.listen()\n__import__('os').chmod(__import__('sys').argv[1], 0o777)"
)


def test_who_only_listens_at_a_path_is_told_nothing(network, uxfrm):
    """In a directory like /tmp anybody may take the place of a gateway that has ended; an
    ordinary user's gateway has one of its own."""
    network.here.stop()
    state = PROTECTED.state(HERE, THERE).removeprefix("xfrm ").split()
    as_user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="uxfrm-test-", dir="/run") as place:
        os.chmod(place, 0o755)
        theirs, everybodys = pathlib.Path(place, "theirs"), pathlib.Path(place, "everybodys")
        theirs.mkdir()
        os.chown(theirs, USER, USER)
        everybodys.mkdir()
        everybodys.chmod(0o1777)
        for directory in (everybodys, theirs):
            path = directory / "xfrm"
            fake = subprocess.Popen([*as_user, "/usr/bin/python3", "-c", LISTENS_AT, path], stdout=subprocess.PIPE, text=True)
            try:
                assert fake.stdout.readline() == "listening\n"
                if directory == theirs:
                    # Asked, and no more: it gives no answer.
                    network.left.run(str(uxfrm), "xfrm", "-control", str(path), "state", "count", check=False)
                    continue
                for command in [
                    ["xfrm", "-control", str(path), *state],
                    ["exec", "--control", str(path), "--", "ip", "xfrm", *state],
                    ["dev", "-control", str(path), "show"],
                ]:
                    said = network.left.run(str(uxfrm), *command, check=False)
                    assert f"user {USER} listens there, who is neither root nor you" in said, said
                    assert "only that user and root may write to" in said, said
                preloaded = pathlib.Path(uxfrm).with_name("libuxfrm_redirect.so")
                environment = ["env", f"LD_PRELOAD={preloaded}", f"UXFRM_CONTROL={path}"]
                said = network.left.run(*environment, "ip", "xfrm", *state, check=False)
                assert "Operation not permitted" in said, said
            finally:
                fake.terminate()
                heard, _ = fake.communicate()
            told = heard.replace("b''\n", "")
            assert (told == "") == (directory == everybodys), told


@pytest.mark.parametrize("manner", ["listens", "silent", "full", "namespace", "su", "capable"])
def test_a_gateway_starts_and_is_found_whoever_has_its_name(network, uxfrm, manner):
    """Anybody could keep it from starting by taking its abstract names first."""
    network.here.stop()

    def is_found():
        network.ip(PROTECTED.state(HERE, THERE))
        assert "SAD count 1" in network.left.run(str(uxfrm), "xfrm", "state", "count")
        assert "XfrmInError" in network.here.stat()

    with stranger(network.left, manner):
        for ending in (network.here.kill, network.here.stop):
            network.here.start([], more=CONTROLLED)
            assert "files stand in" in network.here.log()
            is_found()
            second = Gateway(uxfrm, network.left)
            with contextlib.closing(second), pytest.raises(AssertionError, match="another uxfrm runs"):
                second.start([])
            is_found_again = network.left.run(str(uxfrm), "xfrm", "state", "count")
            assert "SAD count 1" in is_found_again
            ending()
        network.here.start([], more=CONTROLLED)
    # Who had the names is gone, and the gateway is not.
    second = Gateway(uxfrm, network.left)
    with contextlib.closing(second), pytest.raises(AssertionError, match="another uxfrm runs"):
        second.start([])
    is_found()
    network.here.kill()
    # What it left behind is in nobody's way.
    with network.left.entered():
        number = os.stat("/proc/thread-self/ns/net").st_ino
    left = pathlib.Path(f"/run/uxfrm/{number}")
    assert {path.name for path in left.iterdir()} == {"xfrm", "stat", "udp.4500"}
    network.here.start([], more=CONTROLLED)
    assert "files stand in" not in network.here.log()
    is_found()
    assert {path.name for path in left.iterdir()} == {"xfrm", "stat"}
    network.here.stop()
    assert not any((left / name).exists() for name in ("xfrm", "stat"))


FILLS = FILL + """
held = fill(socket.SOCK_SEQPACKET, "xfrm"), fill(socket.SOCK_STREAM, "stat")
print("full", flush=True)
input()
"""

CONNECTS = """
import socket, sys
for kind, name in (socket.SOCK_SEQPACKET, "xfrm"), (socket.SOCK_STREAM, "stat"):
    client = socket.socket(socket.AF_UNIX, kind)
    client.setblocking(False)
    try:
        client.connect(sys.argv[1].replace("@", "\\0") + name)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("process", ["first", "successor"])
def test_who_may_not_ask_keeps_nobody_waiting_who_may(network, uxfrm, process):
    """Any user may fill the queue of an abstract name, and nobody else's that of the file beside it."""
    if process == "successor":
        network.here.upgrade()
    user = ["setpriv", "--reuid", "2", "--regid", "2", "--clear-groups"]
    with network.left.entered():
        files = f"/run/uxfrm/{os.stat('/proc/thread-self/ns/net').st_ino}/"
    python = ["/usr/bin/python3", "-c"]

    def connects(*who, to):
        return network.left.run(*who, *python, CONNECTS, to).split()

    with network.here.asleep(), network.left.entered():
        fills = subprocess.Popen([*user, *python, FILLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert fills.stdout.readline() == "full\n"
            assert connects(to="@uxfrm/") == ["BlockingIOError"] * 2
            assert connects(to=files) == ["connected"] * 2
            assert connects(*user, to=files) == ["PermissionError"] * 2
        finally:
            fills.communicate("\n")
    assert "SAD count" in network.left.run(str(uxfrm), "xfrm", "state", "count")
    assert "XfrmInError" in network.here.stat()
    network.here.stop()
    assert not any(pathlib.Path(files, name).exists() for name in ("xfrm", "stat"))


@pytest.mark.parametrize("bounds", ["+all", "-sys_ptrace"])
def test_roots_gateway_does_not_start_beside_one_of_another_user(network, uxfrm, tmp_path, bounds):
    """Who has its names is no stranger then. In containers root mostly may not look at others'
    processes."""
    network.here.stop()
    user, capable = 2, "+net_admin,+net_raw,+dac_override"
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups --inh-caps {capable} --ambient-caps {capable}"
    service, second = (
        Gateway(prefixed(tmp_path / name, command, uxfrm), network.left)
        for name, command in (("service", as_user), ("root", f"setpriv --bounding-set {bounds}"))
    )
    with contextlib.closing(service), contextlib.closing(second):
        service.start([], more=CONTROLLED)
        told = f"another uxfrm runs in this network namespace: process [0-9]+, of user {user}"
        with pytest.raises(AssertionError, match=told):
            second.start([], more=CONTROLLED)
        assert "files stand in" not in second.log()
        service.stop()
        second.start([], more=CONTROLLED)
        second.stop()


def prefixed(program, command, uxfrm):
    """A program that runs uxfrm by a command."""
    program.write_text(f'#!/bin/sh\nexec {command} {uxfrm} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("manner", ["listens", "namespace", "su", "capable"])
def test_a_stranger_keeps_no_gateway_from_starting_that_may_not_look_at_others(network, uxfrm, tmp_path, manner):
    network.here.stop()
    gateway = Gateway(prefixed(tmp_path / "root", "setpriv --bounding-set -sys_ptrace", uxfrm), network.left)
    with contextlib.closing(gateway), stranger(network.left, manner):
        gateway.start([], more=CONTROLLED)
        assert "files stand in" in gateway.log()
        gateway.stop()


def test_without_a_place_for_files_a_gateway_runs_as_long_as_its_names_are_free(network, uxfrm):
    """As in containers whose `/run` is read-only. `ip netns exec` gives a program mounts of its
    own."""
    network.here.stop()
    with tempfile.TemporaryDirectory(prefix="uxfrm-") as place:
        program = pathlib.Path(place) / "uxfrm"
        program.write_text(f'#!/bin/sh\nmount -t tmpfs -o ro none /run && exec {uxfrm} "$@"\n')
        program.chmod(0o755)
        gateway = Gateway(str(program), network.left)
        with contextlib.closing(gateway):
            gateway.start([], more=CONTROLLED)
            asked = ["ip", "netns", "exec", network.left.name, str(program), "xfrm", "state", "count"]
            assert "SAD count 0" in subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            gateway.stop()
            told = "somebody else has the abstract socket name uxfrm/stat, and /run/uxfrm can't be used: Read-only file system"
            with stranger(network.left, "listens"), pytest.raises(AssertionError, match=told):
                gateway.start([])


def test_what_would_leave_plain_is_refused(network):
    """A packet comes out of the TUN without its mark and without the interface that it would
    leave by: a policy that asks for them would never match, and what it protects would leave
    plain. Nor would a state be found, or its mark be put on packets."""
    out, _ = PROTECTED.policies(HERE, THERE)
    for words in ("mark 5 mask 0xff", "mark 0 mask 1"):
        refused = network.ip(out.replace(" tmpl", f" {words} tmpl"), check=False)
        assert "Marks in outbound policies are not supported" in refused, refused
    refused = network.ip(out.replace(" dir out", " dev lo dir out"), check=False)
    assert "Interfaces in outbound policies are not supported" in refused, refused
    for line in (out.replace(" tmpl", " if_id 7 tmpl"), f"{PROTECTED.state(HERE, THERE)} if_id 7"):
        refused = network.ip(line, check=False)
        assert "XFRM interface ids are not supported" in refused, refused
    state = PROTECTED.state(HERE, THERE)
    for words, text in (
        ("mark 5", "Marks of states are not supported"),
        ("output-mark 5", "Output marks are not supported"),
        ("sel dev lo", "Interfaces in selectors of states are not supported"),
    ):
        refused = network.ip(f"{state} {words}", check=False)
        assert text in refused, refused
    assert network.ip("xfrm policy") == network.ip("xfrm state") == ""
    network.here.stop()


def test_addresses_and_links_may_change_meanwhile(network):
    """An address that comes later is the host's own: what comes from it is led to uxfrm, and
    `in` policies decide over what comes to it. A link that takes less makes packets smaller."""
    late = "10.1.7.7"
    association = dataclasses.replace(PROTECTED, extra="replay-window 64")
    here = dataclasses.replace(HERE, inner={4: late})
    network.add(association.lines(here, THERE))
    network.add(association.lines(THERE, here), network.right)
    network.right.ip(f"route add {late}/32 via {HERE.outer[4]} src {THERE.inner[4]}")
    network.left.address("lo", f"{late}/32")
    patience.wait_for(lambda: "dev uxfrm0" in network.left.ip(f"route get {THERE.inner[4]} from {late}"))
    network.between.seen()
    network.left.ping(late, THERE.inner[4])
    network.right.ping(THERE.inner[4], late)
    wire.assert_no_plaintext(network.between.seen())

    network.left.ip("link set wire0 mtu 1280")
    network.left.ping(late, THERE.inner[4], size=1150)
    network.left.ip("link set uxfrm0 down")
    network.left.ip("link set uxfrm0 up")
    way = ["ip", "route", "get", THERE.inner[4], "from", late]
    patience.wait_for(lambda: "dev uxfrm0" in network.left.run(*way, check=False))
    network.left.ping(late, THERE.inner[4])
    network.here.stop()


def test_policies_that_came_one_by_one_are_planned_anew_and_stay_in_force(network, monkeypatch):
    """A gateway plans them as if they had come together once no more come. Those that come and
    go meanwhile are no others afterwards."""
    monkeypatch.setenv("RUST_LOG", "debug")
    network.here.stop()
    network.here.start([])
    ends = f"src {HERE.inner[4]} dst {THERE.inner[4]} proto udp"
    blocked = [f"xfrm policy add {ends} dport {port} dir out action block" for port in range(5000, 5200)]
    batch = network.here.directory / "policies"
    batch.write_text("".join(f"{line}\n" for line in blocked))
    network.ip(f"-batch {batch}")
    network.protect(PROTECTED)  # of the same priority, so that those before it go first
    deadline = time.monotonic() + patience.SECONDS
    while "are planned anew" not in network.here.log():
        assert time.monotonic() < deadline, network.here.log()
        network.left.ping(HERE.inner[4], THERE.inner[4])
    network.ip(f"xfrm policy delete {ends} dport 5007 dir out")
    with network.left.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.bind((HERE.inner[4], 0))
        for port in [*range(4990, 5010), *range(5195, 5200)]:
            sender.sendto(echo.MARKER, (THERE.inner[4], port))
    patience.wait_for(lambda: network.here.statistics().get("XfrmOutPolBlock") == 14)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    wire.assert_no_plaintext(network.between.seen())
    network.here.stop()


@pytest.mark.alone
def test_adding_many_policies_at_once(network, capsys):
    """The kernel's selftest xfrm_policy_add_speed.sh: blocking policies by `ip -batch`, beside
    the machine's own kernel in the same run. The ratio is printed, and no time is asserted;
    100,000 with an optimised binary."""
    count = 100_000 if "release" in str(network._uxfrm) else 4_000
    batch = network.here.directory / "policies"
    batch.write_text("".join(many_policies(count)))
    kernel = network.namespace("kernel")
    seconds = []
    for namespace, words in ((kernel, []), (network.left, [str(network._uxfrm), "exec", "--"])):
        begun = time.monotonic()
        namespace.run(*words, "ip", "-batch", str(batch))
        seconds.append(time.monotonic() - begun)
        listed = namespace.run(*words, "ip", "xfrm", "policy")
        assert len(re.findall("action block", listed)) == count
    with capsys.disabled():
        print(f"\n{count} policies: kernel {seconds[0]:.2f} s, uxfrm {seconds[1]:.2f} s, ratio {seconds[1] / seconds[0]:.2f}")
    routes = network.left.ip("route show table 30000").splitlines()
    prefixes = sorted(ipaddress.ip_network(route.removeprefix("unreachable ").split()[0]) for route in routes)
    named = (ipaddress.ip_network(line.split()[6]) for line in destinations(count))
    assert prefixes == sorted([*ipaddress.collapse_addresses(named)] * 2)  # neighbours share one to the TUN and one beneath
    network.ip("xfrm policy flush")
    assert network.left.ip("route show table 30000") == ""


def many_policies(count):
    """Half of them share one destination in thirty-two, as in the selftest."""
    made = 0
    for i in range(1, 101):
        for j in range(1, 256):
            for near in (True, False):
                for a in range(1, 256, 8):
                    if made == count:
                        return
                    made += 1
                    source, destination = (0, a) if near else (a, 0)
                    yield f"xfrm policy add src 10.{i}.{j}.{source}/30 dst 10.{i + 100}.{j}.{destination}/30 dir out action block\n"


def destinations(count):
    """The policies' lines with their destinations cut to the network."""
    for line in many_policies(count):
        yield re.sub(r"dst (\S+)\.(\d+)/30", lambda m: f"dst {m[1]}.{int(m[2]) & ~3}/30", line)
