"""What a device does with a state is what software does: replay positions, limits, functions that
go down, bursts and counters, in a running gateway.

The whole contract is tested in memory (crates/offload/tests/contract); here is what needs
netlink, threads and interfaces.
"""

import contextlib
import socket
import subprocess
import time

import pytest

import patience
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from listener import of_gateway
from namespace import UNANSWERED_SECONDS
from test_offload import CRYPTO, PACKET, WINDOW, assert_accounts, client, device, expiries, install, offloaded
from topology import HERE, THERE

SOFTWARE = ""
# asm-generic/socket.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
WAIT_SECONDS = patience.SECONDS
PORT = 7117
POSITION = 1000
STREAMS, STREAM_DATAGRAMS, PAYLOAD = 4, 2000, 1200
MICROSECONDS_BETWEEN = 400
BURST = 3000


@pytest.fixture
def pair(uxfrm):
    """Two gateways, each a device `nic0` with a virtual function; a function that installs
    states on either's."""
    with topology.TwoGateways("wire0") as network:
        network.ends = ((network.left, HERE, THERE), (network.right, THERE, HERE))
        for namespace, side, _ in network.ends:
            topology.place(namespace, "wire0", side)
        network.gateways = [Gateway(uxfrm, namespace, workers=workers) for namespace, workers in ((network.left, 1), (network.right, 2))]
        for gateway in network.gateways:
            network.callback(gateway.close)
            gateway.start(more=CONTROLLED)
        for namespace, _, _ in network.ends:
            client(uxfrm, namespace, "dev", "add nic0 profile unlimited vfs 1")
            client(uxfrm, namespace, "dev", "set nic0 vf 0 trust on")
        yield network


def put(uxfrm, kind, association, end, name="nic0", into="", out=""):
    """States and policies of one end, and words more for the one that receives and the one that
    sends."""
    namespace, here, there = end
    if kind == SOFTWARE:
        lines = association.lines(here, there)
    else:
        lines = offloaded(kind, association, here, there, name)
    outward, inward, *policies = lines
    install(uxfrm, namespace, [f"{outward} {out}", f"{inward} {into}", *policies])


def reasons(uxfrm, namespace):
    """The drop reasons of `uxfrm stat` that are not zero."""
    lines = (line.split() for line in namespace.run(str(uxfrm), "stat", "--reasons").splitlines())
    return {name: int(count) for name, count in lines if count != "0"}


@contextlib.contextmanager
def listener(namespace, address):
    """A function that gives how many datagrams came to a socket."""
    with namespace.entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    receiver.bind((address, PORT))
    receiver.setblocking(False)
    count = 0

    def came():
        nonlocal count
        with contextlib.suppress(BlockingIOError):
            while receiver.recv(2048):
                count += 1
        return count

    with receiver:
        yield came


@contextlib.contextmanager
def senders(namespace, source, destination, count=1):
    """Sockets that send to that one."""
    with namespace.entered(), contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for sender in made:
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
            sender.bind((source, 0))
            sender.connect((destination, PORT))
        yield made


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
@pytest.mark.parametrize("esn", ["", " flag esn"], ids=["short", "esn"])
def test_old_numbers_are_old_and_all_is_shown(kind, esn, uxfrm, pair):
    """`replay-seq 1000`: what comes with 1 and more is dropped and counted, what comes with 1001
    is taken; a dump shows how far the state is."""
    association = Association(GCM_128, "transport", 4, 4, f"{WINDOW}{esn}", reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    put(uxfrm, kind, association, pair.ends[0], into=f"replay-seq {POSITION}")
    put(uxfrm, SOFTWARE, association, pair.ends[1])
    counter = "XfrmInStateProtoError" if esn else "XfrmInStateSeqError"
    shown = lambda: client(uxfrm, pair.left, "xfrm", "state")[1]  # noqa: E731
    with listener(pair.left, here) as came, senders(pair.right, there, here) as [sender]:
        for _ in range(3):
            sender.send(b"old")
        patience.wait_for(lambda: pair.gateways[0].statistics().get(counter, 0) >= 3, pair.gateways[0].stat)
        assert came() == 0
        assert f"seq {POSITION:#x}" in shown(), shown()
        gone = f"state delete src {there} dst {here} proto esp spi {association.spi_of(HERE)}"
        client(uxfrm, pair.right, "xfrm", gone)
        [outward, *_] = association.lines(THERE, HERE)
        install(uxfrm, pair.right, [f"{outward} replay-oseq {POSITION}"])
        for _ in range(3):
            sender.send(b"new")
        patience.wait_for(lambda: came() == 3, lambda: (came(), pair.gateways[0].stat()))
        assert f"seq {POSITION + 3:#x}" in shown(), shown()


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
def test_a_soft_limit_is_told_though_the_hard_one_follows_at_once(kind, uxfrm, pair):
    """And an update's limits are kept."""
    association = Association(GCM_128, "transport", 4, 4, f"{WINDOW} limit packet-soft 1000 limit packet-hard 2000", reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for end in pair.ends:
        put(uxfrm, kind, association, end)
    outward = (association.lines if kind == SOFTWARE else lambda *sides: offloaded(kind, association, *sides))(HERE, THERE)[0]
    tight = outward.replace("packet-soft 1000", "packet-soft 5").replace("packet-hard 2000", "packet-hard 10")
    install(uxfrm, pair.left, [tight.replace("state add", "state update")])
    with expiries(uxfrm, pair.left) as heard, senders(pair.left, here, there) as [sender]:
        pair.between.seen()
        for _ in range(30):
            with contextlib.suppress(OSError):
                sender.send(b"one of thirty")
        assert [heard(), heard()] == ["soft", "hard"]
    spi = int(association.spi_of(THERE), 0)
    sent = sum(frame[34:38] == spi.to_bytes(4, "big") for outgoing, frame in pair.between.seen() if outgoing)
    assert sent == 10
    assert reasons(uxfrm, pair.left).get("out_state_expired", 0) > 0, "the device's drops are counted too"


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
def test_who_listens_hears_how_far_a_state_has_received(kind, uxfrm, pair):
    """Aevents, after two packets by default (net.core.xfrm_aevent_rseqth)."""
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for end in pair.ends:
        put(uxfrm, kind, association, end)
    with (
        monitor(uxfrm, pair.right, "aevent") as lines,
        listener(pair.right, there) as came,
        senders(pair.left, here, there) as [sender],
    ):
        for _ in range(10):
            sender.send(b"ten")
        patience.wait_for(lambda: came() == 10, came)
        assert any(line.startswith("Async event") for line in lines)


@contextlib.contextmanager
def monitor(uxfrm, namespace, what):
    """The lines of `uxfrm xfrm monitor`, until nothing comes for long."""
    command = ["timeout", str(patience.SECONDS), uxfrm, "xfrm", "monitor", what]
    with of_gateway(namespace, uxfrm, *command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout


@pytest.mark.parametrize("how", ["set nic0v0 down", "delete nic0v0"], ids=["down", "deleted"])
def test_a_function_whose_interface_goes_sends_nothing_more(how, uxfrm, pair):
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for end in pair.ends:
        put(uxfrm, PACKET, association, end, name="nic0v0")
    pair.left.ping(here, there)
    pair.left.ip(f"link {how}")
    patience.wait_for(lambda: "nic0v0" not in client(uxfrm, pair.left, "xfrm", "state")[1], lambda: client(uxfrm, pair.left, "xfrm", "state")[1])
    pair.between.seen()
    with pytest.raises(RuntimeError):
        pair.left.ping(here, there, count=1, seconds=UNANSWERED_SECONDS)
    assert not any(outgoing and wire.protocol(frame) == "esp" for outgoing, frame in pair.between.seen())
    assert device(uxfrm, pair.left)["link"] == "up", "the device itself goes on"
    assert device(uxfrm, pair.left)["functions"][0]["link"] == "down"


def test_four_streams_of_one_state_keep_their_order_in_kind_crypto(uxfrm, pair):
    """A window of 32, two workers, and a device with many queues."""
    association = Association(GCM_128, "transport", 4, 4, "replay-window 32", reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    put(uxfrm, SOFTWARE, association, pair.ends[0])
    put(uxfrm, CRYPTO, association, pair.ends[1])
    with listener(pair.right, there) as came, senders(pair.left, here, there, STREAMS) as streams:
        for _ in range(STREAM_DATAGRAMS):
            for stream in streams:
                stream.send(bytes(PAYLOAD))
            came()
            time.sleep(MICROSECONDS_BETWEEN / 1e6)
        lost = lambda: sum(reasons(uxfrm, pair.right).values())  # noqa: E731
        patience.wait_for(lambda: came() + lost() >= STREAMS * STREAM_DATAGRAMS, lambda: (came(), reasons(uxfrm, pair.right)))
        found = reasons(uxfrm, pair.right)
        assert "in_too_old" not in found, found
        assert came() > 0
    assert device(uxfrm, pair.right)["rx"]["passed"] >= STREAMS * STREAM_DATAGRAMS - lost()


@pytest.mark.parametrize("kind", [CRYPTO, PACKET])
def test_a_burst_is_not_dropped_for_want_of_room_in_a_device(kind, uxfrm, pair):
    association = Association(GCM_128, "transport", 4, 4, "replay-window 256", reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for end in pair.ends:
        put(uxfrm, kind, association, end)
    with listener(pair.right, there) as came, senders(pair.left, here, there) as [sender]:
        for _ in range(BURST):
            sender.send(b"burst")
        sent = lambda: device(uxfrm, pair.left)["tx"]["passed"]  # noqa: E731
        seen = -1
        while seen != sent():
            seen = sent()
            time.sleep(0.3)
        assert came() > 0
    for namespace in (pair.left, pair.right):
        assert "port_full" not in reasons(uxfrm, namespace), reasons(uxfrm, namespace)
        assert_accounts(device(uxfrm, namespace))


def test_what_a_device_dropped_is_in_the_kernels_counters(uxfrm, pair):
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for end in pair.ends:
        put(uxfrm, PACKET, association, end)
    client(uxfrm, pair.right, "dev", "set nic0 fault wrong-decryption 2")
    with listener(pair.right, there) as came, senders(pair.left, here, there) as [sender]:
        for _ in range(5):
            sender.send(b"five")
        patience.wait_for(lambda: came() == 3, came)
    assert pair.gateways[1].statistics().get("XfrmInStateProtoError") == 2
    assert reasons(uxfrm, pair.right)["in_forged"] == 2
    client(uxfrm, pair.right, "dev", "del nic0")
    assert reasons(uxfrm, pair.right)["in_forged"] == 2, "also when it is gone"
