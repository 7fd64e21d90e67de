"""What `uxfrm run` does to its host: nothing stays behind after SIGTERM, nothing leaves in the
clear after a crash.

        ┌─ namespace left ───────────┐  veth   ┌─ namespace right ──────────┐
        │ lo      10.1.0.1           │         │ lo      10.2.0.1           │
        │ uxfrm0  (TUN)              │         │                            │
        │ wire0   10.9.0.1  ─────────┼─────────┼─ wire0  10.9.0.2           │
        └────────────────────────────┘    ▲    └────────────────────────────┘
          10.2.0.1 via 10.9.0.2          wire    10.1.0.1 via 10.9.0.1

The namespaces reach each other without uxfrm: what uxfrm fails to protect is seen on the wire.
"""

import contextlib
import socket
import subprocess
import threading
import time

import pytest

import echo
import patience
import topology
import wire
from association import GCM_128, Association
from gateway import Gateway
from namespace import UNANSWERED_SECONDS
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)


@pytest.fixture
def network(uxfrm):
    with topology.TwoGateways("wire0") as made:
        topology.place(made.left, "wire0", HERE)
        topology.place(made.right, "wire0", THERE)
        made.left.ip(f"route add {THERE.inner[4]}/32 via {THERE.outer[4]} src {HERE.inner[4]}")
        made.right.ip(f"route add {HERE.inner[4]}/32 via {HERE.outer[4]} src {THERE.inner[4]}")
        yield made


@pytest.fixture
def gateway(uxfrm, network):
    made = Gateway(uxfrm, network.left)
    yield made
    made.close()


def host_state(namespace):
    """All that host mode may touch: links, addresses, rules and routes of both families."""
    questions = ("-br link", "-br address", "-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all")
    return {question: sorted(namespace.ip(question).splitlines()) for question in questions}


def assert_no_connection(namespace):
    with pytest.raises(RuntimeError):
        namespace.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)


def test_the_wire_shows_plaintext_where_there_is_any(network):
    """The counter-test of all the others: without uxfrm the marker is seen."""
    network.left.ping(HERE.inner[4], THERE.inner[4])
    with pytest.raises(AssertionError, match="in the clear"):
        wire.assert_no_plaintext(network.between.seen())


def test_sigterm_leaves_the_host_as_it_was(gateway, network):
    before = host_state(network.left)
    gateway.start(PROTECTED.lines(HERE, THERE))
    assert host_state(network.left) != before, "host mode sets routes and a TUN"
    gateway.stop()
    assert host_state(network.left) == before


@pytest.mark.parametrize("guard", ["auto", "off"])
def test_nothing_leaves_in_the_clear_between_orderly_runs(gateway, network, guard):
    """`at_exit = "block"`, as is the default: routes that refuse and the guard stay, as after a
    crash."""
    lines = PROTECTED.lines(HERE, THERE)
    gateway.start(lines, guard=guard, at_exit="block")
    network.between.seen()
    with flooding(network.left):
        for _ in range(6):
            gateway.stop()
            assert_no_connection(network.left)
            gateway.start(lines, guard=guard, at_exit="block")
    wire.assert_no_plaintext([(True, frame) for outgoing, frame in network.between.seen() if outgoing])
    gateway.stop()
    clean(gateway, network)


def test_clean_leaves_the_host_as_it_was_once_uxfrm_has_ended(gateway, network):
    before = host_state(network.left)
    gateway.start(PROTECTED.lines(HERE, THERE), at_exit="block")
    refused = clean(gateway, network, check=False)
    assert "stop it first" in refused, refused
    for end in (gateway.stop, gateway.kill):
        gateway.running() or gateway.start(PROTECTED.lines(HERE, THERE), at_exit="block")
        end()
        assert host_state(network.left) != before, "what was protected is refused"
        clean(gateway, network)
        assert host_state(network.left) == before
    clean(gateway, network)  # nothing to do is no error
    network.left.ping(HERE.inner[4], THERE.inner[4])


def clean(gateway, network, check=True):
    return network.left.run("sh", "-c", f"{gateway._binary} clean 2>&1", check=check)


def test_the_host_makes_super_packets_that_leave_as_one_train(gateway, network):
    """44 packets of 1472 bytes are one message of a UDP socket; the host's own 65,536 bytes
    would be two."""
    gateway.start(PROTECTED.lines(HERE, THERE))
    assert "gso_max_segs 44 " in network.left.ip("-d link show dev uxfrm0")
    gateway.stop()


def test_two_runs_one_after_the_other(gateway, network):
    before = host_state(network.left)
    for _ in range(2):
        gateway.start(PROTECTED.lines(HERE, THERE))
        gateway.stop()
    assert host_state(network.left) == before


def test_after_a_crash_nothing_leaves_in_the_clear(gateway, network):
    """SIGKILL: what the policies protect stays cut off until uxfrm runs again, and then SIGTERM
    cleans it all up."""
    before = host_state(network.left)
    gateway.start(PROTECTED.lines(HERE, THERE))
    network.between.seen()
    gateway.kill()
    assert_no_connection(network.left)
    wire.assert_no_plaintext(network.between.seen())

    gateway.start(PROTECTED.lines(HERE, THERE))
    gateway.stop()
    assert host_state(network.left) == before


def test_nothing_leaves_in_the_clear_while_uxfrm_starts_after_a_crash(gateway, network):
    """The routes that refuse stay until those to the TUN are there; without the guard, which
    would cover up for them. Some hundred policies `in` make starts longer, and packets are sent
    as fast as may be."""
    lines = [f"xfrm policy add src 10.7.{net}.0/24 dst 10.8.0.0/16 dir in action block" for net in range(250)]
    lines += PROTECTED.lines(HERE, THERE)
    gateway.start(lines, guard="off")
    network.between.seen()
    with flooding(network.left):
        for _ in range(8):
            gateway.kill()
            gateway.start(lines, guard="off")
            wire.assert_no_plaintext([(True, frame) for outgoing, frame in network.between.seen() if outgoing])
    gateway.stop()


@contextlib.contextmanager
def flooding(namespace):
    """Sends the marker to the other side all the time, whether or not the host lets it."""
    with namespace.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((HERE.inner[4], 0))
    ends = threading.Event()

    def send():
        while not ends.is_set():
            with contextlib.suppress(OSError):
                sender.sendto(echo.MARKER, (THERE.inner[4], 9))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        sender.close()


def test_other_policies_after_a_crash_leave_nothing_of_the_former(gateway, network):
    other = ["xfrm policy add src 0.0.0.0/0 dst 10.77.0.0/16 dir out action block"]
    gateway.start(other)
    expected = host_state(network.left)
    gateway.kill()
    gateway.start(PROTECTED.lines(HERE, THERE))
    gateway.kill()
    network.left.ip("rule add not fwmark 0x77 lookup 30000 priority 32700")
    gateway.start(other)
    assert without_indexes(host_state(network.left)) == without_indexes(expected)
    gateway.stop()


def without_indexes(state):
    """IPv6's link-local address of the TUN is another each time."""
    return {question: [line for line in lines if "fe80:" not in line] for question, lines in state.items()}


def test_a_tun_that_somebody_deletes_ends_the_gateway_which_says_why(gateway, network):
    gateway.start(PROTECTED.lines(HERE, THERE))
    network.left.ip("link delete uxfrm0")
    deadline = time.monotonic() + patience.SECONDS
    while gateway.running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not gateway.running()
    said = gateway.log().splitlines()[-1]
    until = "uxfrm: protected destinations stay unreachable until uxfrm runs again: a worker ended by itself: "
    assert said == until + "the TUN is gone: File descriptor in bad state (os error 77)"
    assert_no_connection(network.left)
    wire.assert_no_plaintext(network.between.seen())
    gateway.start(PROTECTED.lines(HERE, THERE))
    gateway.stop()


OTHER_TABLE = "table = 31000"


def test_another_table_after_a_crash_leaves_nothing_of_the_former(gateway, network):
    """Its rule stood beside the new one and led to routes that refuse, for ever. Rules of others
    stay."""
    network.left.ip("rule add priority 32700 not fwmark 7 table 555")
    network.left.ip("route add unreachable 10.77.0.0/24 table 555")
    before = host_state(network.left)
    both = [PROTECTED.lines(HERE, THERE)[-1], "xfrm policy add src ::/0 dst fd99::/64 dir out action block"]
    gateway.start(both)
    gateway.kill()
    gateway.start([], wire=OTHER_TABLE)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    assert network.left.ip("rule").count("lookup 30000") == 0
    gateway.stop()
    assert host_state(network.left) == before


@pytest.mark.parametrize("mode", ["tunnel", "transport"])
def test_the_host_chooses_the_same_source_address(mode, gateway, network):
    """A socket that is bound to no address sends from the one that it would have without uxfrm,
    as with the kernel's XFRM; from any other the packet would not match the policy."""
    association = Association(GCM_128, mode, 4, 4)
    destination = association.endpoints(THERE)
    before = chosen_source(network.left, destination)
    gateway.start(association.lines(HERE, THERE))
    assert chosen_source(network.left, destination) == before == association.endpoints(HERE)
    gateway.stop()


def chosen_source(namespace, destination):
    with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unbound:
        unbound.connect((destination, 9))
        return unbound.getsockname()[0]


def test_without_a_state_nothing_leaves_in_the_clear(gateway, network):
    """A policy whose SA is not there (yet) holds its traffic back."""
    gateway.start(PROTECTED.policies(HERE, THERE))
    network.between.seen()
    assert_no_connection(network.left)
    wire.assert_no_plaintext(network.between.seen())
    gateway.stop()


def test_the_answer_to_a_plain_request_is_protected(gateway, network):
    """The right side knows no ESP and asks in the clear: the answer goes out as the policy says,
    or not at all."""
    gateway.start(PROTECTED.lines(HERE, THERE))
    network.between.seen()
    with pytest.raises(RuntimeError, match="100% packet loss"):
        network.right.ping(THERE.inner[4], HERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)
    wire.assert_no_plaintext([(True, frame) for outgoing, frame in network.between.seen() if outgoing])
    gateway.stop()


def test_a_plain_datagram_is_not_delivered(gateway, network):
    """The policy `in` wants ESP; the right side, which knows nothing of it, must not be
    believed."""
    with network.left.entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, network.right.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind((HERE.inner[4], 0))
        receiver.settimeout(patience.SECONDS)
        sender.bind((THERE.inner[4], 0))
        sender.sendto(b"before", receiver.getsockname())
        assert receiver.recv(100) == b"before"
        gateway.start(PROTECTED.lines(HERE, THERE))
        sender.sendto(b"plain", receiver.getsockname())
        receiver.settimeout(0.5)
        with pytest.raises(TimeoutError):
            receiver.recv(100)
    gateway.stop()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 1 mode tunel", "tunel"),
        ("xfrm policy add src 10.1.0.1/33 dst 10.2.0.1/32 dir out", "10.1.0.1/33"),
        ("xfrm nonsense add", "nonsense"),
    ],
)
def test_a_wrong_line_is_named(line, word, gateway, network):
    """File, line and word; and the host is left alone."""
    before = host_state(network.left)
    with pytest.raises(AssertionError, match="ended at start") as refusal:
        gateway.start(["# a comment, so that the mistake is in line 2", line])
    assert f"{gateway.batch}:2" in str(refusal.value)
    assert word in str(refusal.value)
    assert host_state(network.left) == before


def test_a_start_that_fails_before_policies_are_in_force_leaves_the_host_as_it_was(gateway, network):
    before = host_state(network.left)
    with pytest.raises(AssertionError, match="lo is no Ethernet device"):
        gateway.start(PROTECTED.lines(HERE, THERE), wire='af_xdp = "lo"')
    assert host_state(network.left) == before


def test_a_start_that_fails_with_policies_in_force_stays_closed_and_says_so(gateway, network):
    before = host_state(network.left)
    tunnels = gateway.directory / "tunnels.batch"
    tunnels.write_text("link add name wire0 type ipip remote 10.9.0.2 local 10.9.0.1\n")
    with pytest.raises(AssertionError, match="tunnel wire0: File exists") as refusal:
        gateway.start(PROTECTED.lines(HERE, THERE), more=f'\n[tunnel]\nbatch = ["{tunnels}"]\n')
    assert "protected destinations stay unreachable until uxfrm runs again" in str(refusal.value)
    network.between.seen()
    assert_no_connection(network.left)
    wire.assert_no_plaintext(network.between.seen())
    gateway.start(PROTECTED.lines(HERE, THERE))
    gateway.stop()
    assert host_state(network.left) == before


def test_what_a_start_needs_is_said(uxfrm, gateway, network):
    gateway.write([])
    config = gateway.directory / "config.toml"
    with network.left.entered():
        command = ["setpriv", "--bounding-set", "-net_admin", uxfrm, "run", config]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience.SECONDS)
    assert done.returncode != 0
    assert "can't open the TUN uxfrm0 (needs CAP_NET_ADMIN and /dev/net/tun): Operation not permitted" in done.stderr


def test_a_name_that_is_taken_is_said_to_be(uxfrm, gateway, network):
    gateway.write(PROTECTED.lines(HERE, THERE))
    config = gateway.directory / "config.toml"
    config.write_text(config.read_text().replace('tun = "uxfrm0"', 'tun = "wire0"'))
    with network.left.entered():
        done = subprocess.run([uxfrm, "run", config], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience.SECONDS)
    assert done.returncode != 0
    assert "can't open the TUN wire0, as there is an interface of that name" in done.stderr


@pytest.mark.parametrize("keys", ['socket = "control.socket"', "enabled = false"])
def test_who_finds_no_control_socket_is_not_told_that_none_runs(keys, uxfrm, gateway, network):
    gateway.start(more=f"\n[control]\n{keys}\n")
    for command in (["xfrm", "state"], ["link", "show"], ["fou", "show"], ["dev", "show"], ["exec", "--", "ip", "xfrm", "state"]):
        with pytest.raises(RuntimeError, match="has no control socket here"):
            network.left.run(str(uxfrm), *command)
    if "socket" in keys:
        path = str(gateway.directory / "control.socket")
        for command in ("xfrm", "link", "fou", "dev"):
            network.left.run(str(uxfrm), command, "-control", path, "state" if command == "xfrm" else "show")
    gateway.stop()
    with pytest.raises(RuntimeError, match="no uxfrm runs in this network namespace"):
        network.left.run(str(uxfrm), "xfrm", "state")


def test_an_unknown_configuration_key_is_named(uxfrm, gateway, network):
    gateway.write([])
    config = gateway.directory / "config.toml"
    config.write_text(config.read_text() + "\n[hots]\ntun = 'x'\n")
    with network.left.entered():
        done = subprocess.run([uxfrm, "run", config], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience.SECONDS)
    assert done.returncode != 0
    assert "hots" in done.stderr and "config.toml" in done.stderr
