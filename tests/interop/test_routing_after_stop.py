"""What stays behind when a gateway ends, and what goes: nothing protected leaves plain
meanwhile, and in the end nothing of uxfrm's is left."""

import contextlib
import threading

import pytest

import echo
import prerequisite
from association import GCM_128, Association
from gateway import CONTROLLED
from refusing import Refusing
from routing import ALL, NEIGHBOUR, NET, OTHER, SOCKETS, Pair, bound, datagrams, unbound
from topology import HERE, THERE

GROUPS = "239.0.0.0/8"
QUESTIONS = ("-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all")
# By the chain that marks, by a rule of the plan, and by the plan's rule for groups.
POLICIES = [
    (ALL[4], NET[4], "", True),
    (f"{HERE.inner[4]}/32", "10.66.0.0/16", "", True),
    (f"{HERE.outer[4]}/32", GROUPS, "", True),
    (f"{HERE.inner[4]}/32", "10.66.7.0/24", "", False),
]


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Pair(uxfrm) as made:
        yield made


def host_state(namespace):
    """All that host mode may touch."""
    state = {question: sorted(namespace.ip(question).splitlines()) for question in QUESTIONS}
    return state | {"nft": namespace.run("nft", "list", "ruleset")}


def lines():
    """Policies of both families, and states for IPv4."""
    ends = f"src {HERE.outer[4]} dst {THERE.outer[4]}"
    template = f"tmpl {ends} proto esp reqid 1 mode tunnel"
    out = [
        f"xfrm policy add src {source} dst {destination} {words} dir out priority {9 - number} {template if protects else ''}"
        for number, (source, destination, words, protects) in enumerate(POLICIES)
    ]
    out.append(f"xfrm policy add src {ALL[6]} dst {NET[6]} dir out {template}")
    out.append(f"xfrm policy add src {HERE.inner[6]}/128 dst fd66::/16 dir out {template}")
    return [*Association(GCM_128, "tunnel", 4, 4).states(HERE, THERE), *out]


def clean(network, check=True):
    return network.left.run(network.uxfrm, "clean", check=check)


@pytest.mark.parametrize("guard", ["auto", "off"])
@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("policies", [lines, list], ids=["policies", "none"])
def test_after_clean_nothing_is_left(network, policies, end, guard):
    before = host_state(network.left)
    network.here.start(policies(), guard=guard, at_exit="block")
    if policies is lines:
        rules = network.left.ip("rule")
        assert all(f"\n{rule}:" in rules for rule in (188, 189, 218, 219)), rules
    getattr(network.here, end)()
    assert host_state(network.left) != before, "it stays closed"
    clean(network)
    assert host_state(network.left) == before


def test_an_end_that_opens_leaves_nothing(network):
    before = host_state(network.left)
    network.here.start(lines())
    network.here.stop()
    assert host_state(network.left) == before


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("wire", ["table = 30001", "table = 30031", "table = 29999\nmark = 0x77"])
def test_another_table_or_mark_leaves_nothing_of_the_former(network, wire, end):
    """Their tables overlap, and the former's rule for its own packets stood beside the new one."""
    before = host_state(network.left)
    network.here.start(lines(), at_exit="block")
    getattr(network.here, end)()
    network.here.start(lines(), wire=wire, more=CONTROLLED)
    network.there.start(Association(GCM_128, "tunnel", 4, 4).states(THERE, HERE))
    mark = "0x77" if "0x77" in wire else "0x75780001"
    assert network.left.ip("rule").count("goto 219") == network.left.ip("rule").count(f"fwmark {mark} goto 219") == 1
    network.between.seen()
    with network.left.entered():
        unbound(4, THERE.inner[4], None)
        bound(4, OTHER[4], HERE.inner[4])
        assert network.kinds(2) == ["esp"] * 2
        bound(4, "10.66.7.1", HERE.inner[4])
        unbound(4, NEIGHBOUR[4], None)
        assert network.kinds(2) == ["plain"] * 2
    network.here.stop()
    assert host_state(network.left) == before


def test_a_kernel_that_marks_no_more_is_led_by_destinations_alone(network, uxfrm, tmp_path):
    """After a crash its rules led into tables where all was refused, for ever."""
    before = host_state(network.left)
    network.here.start(lines(), at_exit="block")
    network.here.kill()
    kernel = Refusing(tmp_path, uxfrm, why="EOPNOTSUPP")
    kernel.refuse()
    network.here = network.gateway(kernel.binary, network.left)
    network.here.start(lines())
    rules = network.left.ip("rule")
    assert "32700:" in rules and not any(f"\n{rule}:" in rules for rule in range(188, 220)), rules
    with network.left.entered():
        bound(4, OTHER[4], HERE.inner[4])
        assert network.kinds() == ["esp"]
    network.here.stop()
    clean(network)
    assert host_state(network.left) == before


def test_rules_of_others_stay(network):
    """They look like ours, but for where they lead."""
    for rule in ("priority 188 fwmark 7 goto 300", "priority 190 from 10.7.0.0/16 lookup 555", "priority 219 fwmark 7 lookup 555"):
        network.left.ip(f"rule add {rule}")
    network.left.ip("route add unreachable 10.77.0.0/24 table 555")
    before = host_state(network.left)
    for end in (network.here.stop, network.here.kill):
        network.here.start(lines(), at_exit="block")
        end()
        clean(network)
        assert host_state(network.left) == before


@contextlib.contextmanager
def flooding(namespace):
    """Sends the marker to all that is protected, by each way that leads there, whether or not
    the host lets it."""
    with namespace.entered():
        flows = [(datagrams(family), None, where) for family, where in ((4, THERE.inner[4]), (6, THERE.inner[6]), (4, "239.1.1.1"))]
        flows.append((datagrams(4), HERE.inner[4], OTHER[4]))
        flows.append((datagrams(6), HERE.inner[6], OTHER[6]))
        connected = datagrams(4)
        connected.connect((THERE.inner[4], 9))
    for sender, source, _ in flows:
        source and sender.bind((source, 0))
    ends = threading.Event()

    def send():
        while not ends.is_set():
            for sender, _, where in flows:
                with contextlib.suppress(OSError):
                    sender.sendto(echo.MARKER, (where, 9))
            with contextlib.suppress(OSError):
                connected.send(echo.MARKER)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        connected.close()
        for sender, *_ in flows:
            sender.close()


@pytest.mark.parametrize("guard", ["auto", "off"])
def test_nothing_protected_leaves_plain_while_gateways_end_and_start(network, guard):
    """Six orderly restarts and six crashes under a flood by every way; where nobody guards it is
    the ways alone that keep it in."""
    network.here.start(lines(), guard=guard, at_exit="block")
    network.between.seen()
    with flooding(network.left):
        for end in (network.here.stop, network.here.kill) * 6:
            end()
            with network.left.entered():
                for kind in SOCKETS:
                    with contextlib.suppress(OSError):
                        kind(4, THERE.inner[4], HERE.outer[4])
            network.here.start(lines(), guard=guard, at_exit="block")
    frames = [frame for outgoing, frame in network.between.seen() if outgoing]
    plain = [frame for frame in frames if echo.MARKER in frame]
    assert not plain, f"{len(plain)} frames, the first of them {plain[0].hex()}"
    network.here.stop()
    clean(network)
    network.between.seen()
    with network.left.entered():
        unbound(4, THERE.inner[4], None)
        assert network.kinds() == ["plain"], "the counter-test: so it leaves where nothing keeps it in"
