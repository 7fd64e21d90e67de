"""Receive ports while the gateway runs: `uxfrm fou`, unmodified `ip fou` under `uxfrm exec`,
both beside a Linux kernel's, and generic netlink's other families, which stay the kernel's."""

import functools
import json
import operator
import pathlib
import re
import socket
import subprocess
import time

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Ether

import patience
import topology
from gateway import CONTROLLED, Gateway
from topology import HERE, THERE

ASKER = pathlib.Path(__file__).parents[1] / "peer" / "ask_fou.py"
LINES = [
    "add port 5555 ipproto 4",
    "add port 5556 gue",
    "add port 5557 gue -6",
    "add port 5558 ipproto gre local 127.0.0.1",
    "add port 5559 ipproto 41 local 127.0.0.1 dev lo",
    "add port 5560 gue local ::1 peer fd00::2 peer_port 9 -6",
]
SHOWN = """\
port 5560 gue -6 local ::1 peer fd00::2 peer_port 9
port 5559 ipproto 41 local 127.0.0.1 dev lo
port 5558 ipproto 47 local 127.0.0.1
port 5557 gue -6
port 5556 gue
port 5555 ipproto 4
"""
REFUSED = [
    ("add port 5555 ipproto 4", "RTNETLINK answers: Operation already in progress"),
    ("add port 5555 gue", "RTNETLINK answers: Operation already in progress"),
    ("add port 5555 gue local 127.0.0.1", "RTNETLINK answers: Address already in use"),
    ("add port 5561 gue local 192.0.2.99", "RTNETLINK answers: Cannot assign requested address"),
    ("del port 5999", "RTNETLINK answers: Invalid argument"),
    ("del port 5557", "RTNETLINK answers: Invalid argument"),
]


def own(uxfrm, namespace):
    """`uxfrm fou`: its options stand behind `fou`."""

    def run(words, options=""):
        command = ["ip", "netns", "exec", namespace.name, uxfrm, "fou", *options.split(), *words.split()]
        return outcome(command)

    return run


def unmodified(uxfrm, namespace):
    """`uxfrm exec -- ip fou`."""

    def run(words, options=""):
        command = ["ip", "netns", "exec", namespace.name, uxfrm, "exec", "--", "ip", *options.split(), "fou"]
        return outcome([*command, *words.split()])

    return run


def outcome(command):
    """The exit code and all that was printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience.SECONDS)
    return done.returncode, done.stdout


@pytest.fixture
def alone(uxfrm):
    """A gateway without tunnels, in a namespace with one wire."""
    with topology.UxfrmAndWire() as network:
        gateway = Gateway(uxfrm, network.here)
        network.callback(gateway.close)
        gateway.start(more=CONTROLLED)
        network.gateway = gateway
        yield network


def asked(uxfrm, namespace, what):
    command = ["ip", "netns", "exec", namespace.name, uxfrm, "exec", "--", "/usr/bin/python3", ASKER, what]
    code, out = outcome(command)
    assert code == 0, out
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("client", [own, unmodified])
def test_ports_come_and_go(client, uxfrm, alone):
    fou = client(uxfrm, alone.here)
    assert fou("show") == (0, "")
    for line in LINES:
        assert fou(line) == (0, ""), line
    assert bound(alone.here) >= {5555, 5556, 5557, 5558, 5559, 5560}
    # Whoever asks, the text is iproute2's.
    assert own(uxfrm, alone.here)("show") == unmodified(uxfrm, alone.here)("show") == (0, SHOWN)
    assert own(uxfrm, alone.here)("show", "-j") == unmodified(uxfrm, alone.here)("show", "-j")
    for line, text in REFUSED:
        assert fou(line) == (2, f"{text}\n"), line
    for line in LINES:
        words = re.sub(r"ipproto \S+", "", line.replace("add", "del").replace("gue", ""))
        assert fou(words) == (0, ""), words
    assert fou("show") == (0, "") and not bound(alone.here) & set(range(5555, 5561))


def bound(namespace):
    """UDP ports that have a socket."""
    return {int(line.split()[3].rpartition(":")[2]) for line in namespace.run("ss", "-Hlnu").splitlines()}


def test_the_text_is_the_kernels(uxfrm, linux_network):
    """The same lines to a Linux kernel and to uxfrm: the same lists, as text and as JSON, and
    the same refusals."""
    gateway, linux = Gateway(uxfrm, linux_network.here), linux_network.linux
    try:
        gateway.start(more=CONTROLLED)
        ours = unmodified(uxfrm, linux_network.here)
        linux.run("/run/modprobe -a fou")
        # An IPv6 peer can't be connected to without a way there, which the guest has not.
        lines = [line for line in LINES if "peer" not in line]
        for line in lines:
            assert ours(line)[0] == 0
            linux.run(f"ip fou {line}")
        for options in ("", "-j"):
            assert ours("show", options)[1] == linux.run(f"ip {options} fou show")
        for line in ("del port 5999", "del port 5557", "add port 5561 gue local 192.0.2.99"):
            assert ours(line)[1] == linux.run(f"ip fou {line}", check=False), line
        # The one difference: Linux binds before it compares.
        assert "in use" in linux.run(f"ip fou {LINES[0]}", check=False)
        assert "already in progress" in ours(LINES[0])[1]
    finally:
        linux.run("for p in 5555 5556 5557 5558 5559; do ip fou del port $p; ip -6 fou del port $p; done", check=False)
        linux.run("ip fou del port 5558 local 127.0.0.1; ip fou del port 5559 local 127.0.0.1 dev lo", check=False)
        gateway.close()


def test_other_families_stay_the_kernels(uxfrm, alone):
    """One socket asks the kernel and the gateway in turn; both answers come from port 0."""
    answers = asked(uxfrm, alone.here, "families")
    kernels = {"name": "nlctrl", "id": 0x10, "sender": 0}
    ours = {"name": "fou", "id": 0x4F46, "sender": 0}
    absent = {"name": "no-such", "errno": 2, "sender": 0}
    assert answers == [kernels, ours, kernels, absent, ours, kernels]
    genl = [*"ip netns exec".split(), alone.here.name]
    listing = ["genl", "ctrl", "list"]
    assert outcome([*genl, uxfrm, "exec", "--", *listing]) == outcome([*genl, *listing])


def test_what_can_not_be_has_the_kernels_errno(uxfrm, alone):
    errno = {answer["what"]: answer["errno"] for answer in asked(uxfrm, alone.here, "refused")}
    assert errno == {
        "protocol 0": 22,
        "no protocol": 22,
        "no type": 22,
        "type 3": 22,
        "no port": 22,
        "family 1": 97,
        "peer without port": 22,
        "device without address": 22,
        "short address": 34,
        "nothing to delete": 22,
        "nothing to get": 3,
        "command 9": 95,
    }
    assert own(uxfrm, alone.here)("show") == (0, "")


def test_a_gateway_that_is_not_there_is_told_of(uxfrm, alone):
    alone.gateway.stop()
    code, text = own(uxfrm, alone.here)("show")
    assert code == 1 and "no uxfrm runs in this network namespace" in text


def test_words_that_are_wrong_are_told_in_iproute2s(uxfrm, alone):
    for line, text in [
        ("add ipproto 4", "fou: missing port"),
        ("add port 5", "fou: must set ipproto or gue"),
        ("add port 5 ipproto 4 gue", "fou: cannot set ipproto and gue"),
        ("add port 5 gue peer 10.0.0.1", "fou: both peer and peer port must be set"),
        ("show 5", '"ip fou show" does not take any arguments.'),
        ("add port 5 gue local 127.0.0.1 dev no-such0", "fou: unknown device name"),
    ]:
        theirs = unmodified(uxfrm, alone.here)(line)[1].splitlines()[0]
        ours = own(uxfrm, alone.here)(line)
        assert (ours[0] != 0, ours[1].strip(), theirs) == (True, text, text), line


def test_each_port_counts_what_came_and_what_it_dropped(uxfrm, alone):
    fou = own(uxfrm, alone.here)
    for line in ("add port 5555 ipproto 4", "add port 5556 gue"):
        fou(line)
    with alone.here.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(b"no IP packet at all", (HERE.outer[4], 5555))
        sender.sendto(bytes([0x20, 0, 0, 0]) + bytes(20), (HERE.outer[4], 5556))  # a control message

    def counted():
        return {port["port"]: port for port in json.loads(fou("show", "-j -s")[1])}

    deadline = time.monotonic() + patience.SECONDS
    while sum(port["stats"]["rx"]["packets"] for port in counted().values()) < 4:
        assert time.monotonic() < deadline, counted()
        time.sleep(0.05)
    direct, gue = counted()[5555], counted()[5556]
    assert direct["stats"]["rx"] == {"bytes": 3 * 19, "packets": 3, "dropped": 3}
    assert direct["drops"] == {"tunnel_in_no_tunnel": 3}
    assert (gue["stats"]["rx"]["dropped"], gue["drops"]) == (1, {"tunnel_in_gue_control": 1})
    text = fou("show", "-s")[1]
    assert "    drops: tunnel_in_gue_control 1\n" in text and "RX:  bytes packets dropped" in text
    stat = alone.gateway.namespace.run(str(uxfrm), "stat", "--reasons")
    assert re.search(r"^fou_5555_received_packets\s+3$", stat, re.M)
    assert fou("del port 5555") == (0, "") and fou("add port 5555 gue") == (0, "")
    assert counted()[5555]["stats"]["rx"]["packets"] == 0, "a port's counters begin with it"


def test_a_port_for_all_addresses_has_a_socket_at_that_of_a_tunnel(uxfrm, alone):
    """What comes by it counts as the port's; it comes and goes with the tunnel and with the
    port, whichever is first."""
    fou, local = own(uxfrm, alone.here), HERE.outer[4]
    link = [str(uxfrm), "link"]
    tunnel = f"add name tun1 type ipip remote {THERE.outer[4]} local {local} encap fou encap-dport 5555".split()

    def sockets():
        lines = alone.here.run("ss", "-Hlnu", "sport = :5555").splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines}

    assert fou("add port 5555 ipproto 4") == (0, "") and sockets() == {"0.0.0.0"}
    alone.here.run(*link, *tunnel)
    assert sockets() == {"0.0.0.0", local}
    with alone.here.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for address in (local, local, "127.0.0.1"):
            sender.sendto(b"no IP packet at all", (address, 5555))
    deadline = time.monotonic() + patience.SECONDS
    while (counts := json.loads(fou("show", "-j -s")[1])[0]["stats"]["rx"])["packets"] < 3:
        assert time.monotonic() < deadline, counts
        time.sleep(0.05)
    assert (counts["packets"], counts["dropped"]) == (3, 3)
    assert fou("show") == (0, "port 5555 ipproto 4\n")
    alone.here.run(*link, "del", "tun1")
    assert sockets() == {"0.0.0.0"}
    assert fou("del port 5555") == (0, "")
    alone.here.run(*link, *tunnel)
    assert sockets() == set()
    assert fou("add port 5555 ipproto 4") == (0, "") and sockets() == {"0.0.0.0", local}
    assert fou("del port 5555") == (0, "") and sockets() == set()
    alone.here.run(*link, "del", "tun1")


@pytest.mark.parametrize("in_udp", [True, False])
def test_gre_of_a_key_that_no_tunnel_has_is_counted(in_udp, uxfrm, alone):
    """With a key of its own, with another one, and without; in FOU, and as protocol 47, which
    counts for no port."""
    fou, local = own(uxfrm, alone.here), HERE.outer[4]
    encap = "encap fou encap-sport auto encap-dport 5555" if in_udp else ""
    tunnel = f"add name tun1 up type gre remote {THERE.outer[4]} local {local} key 7 {encap}"
    assert fou("add port 5555 ipproto gre") == (0, "")
    alone.here.run(str(uxfrm), "link", *tunnel.split())
    inner = IP(src=THERE.inner[4], dst=HERE.inner[4]) / ICMP()
    for gre in (GRE(key_present=1, key=7), GRE(key_present=1, key=8), GRE()):
        outer = Ether(src=alone.here.mac("wire0"), dst=alone.mac) / IP(src=THERE.outer[4], dst=local, proto=17 if in_udp else 47)
        udp = [UDP(sport=7, dport=5555, chksum=0)] if in_udp else []
        alone.far.send(bytes(functools.reduce(operator.truediv, [outer, *udp, gre, inner])))

    def reasons():
        lines = alone.here.run(str(uxfrm), "stat", "--reasons").splitlines()
        return {name: int(count) for name, count in map(str.split, lines) if count != "0"}

    deadline = time.monotonic() + patience.SECONDS
    while (counted := reasons()).get("tunnel_in_no_tunnel", 0) + counted.get("tunnel_tun1_received_packets", 0) < 3:
        assert time.monotonic() < deadline, counted
        time.sleep(0.05)
    assert (counted["tunnel_in_no_tunnel"], counted["tunnel_tun1_received_packets"]) == (2, 1)
    assert [name for name in counted if name.startswith("tunnel_in_")] == ["tunnel_in_no_tunnel"]
    if in_udp:
        assert json.loads(fou("show", "-j -s")[1])[0]["drops"] == {"tunnel_in_no_tunnel": 2}


def test_zero_checksums_over_ipv6_are_taken_where_allowed(uxfrm, alone):
    """Every port of Linux takes them (`net/ipv4/fou_core.c: parse_nl_config` leaves
    `use_udp6_rx_checksums` 0), and so does one of which nothing is said. Where they are not
    allowed, the host's UDP drops and counts them."""
    fou = own(uxfrm, alone.here)
    for line in ("add port 5555 ipproto 41 -6", "add port 5556 ipproto 41 -6 noudp6zerocsumrx"):
        assert fou(line) == (0, "")
    assert fou("show")[1] == "port 5556 ipproto 41 -6 noudp6zerocsumrx\nport 5555 ipproto 41 -6\n"
    assert unmodified(uxfrm, alone.here)("show")[1] == "port 5556 ipproto 41 -6\nport 5555 ipproto 41 -6\n"
    assert [port.get("udp6_zero_csum_rx") for port in json.loads(fou("show", "-j")[1])] == [False, None]
    ip = Ether(src=alone.here.mac("wire0"), dst=alone.mac) / IPv6(src=THERE.outer[6], dst=HERE.outer[6])
    for checksum in (0, None):  # None: the right one
        for port in (5555, 5556):
            alone.far.send(bytes(ip / UDP(sport=7, dport=port, chksum=checksum) / b"no IP packet at all"))

    def counted():
        return {port["port"]: port["stats"]["rx"]["packets"] for port in json.loads(fou("show", "-j -s")[1])}

    deadline = time.monotonic() + patience.SECONDS
    while sum(counted().values()) < 3:
        assert time.monotonic() < deadline, counted()
        time.sleep(0.05)
    assert counted() == {5555: 2, 5556: 1}
    snmp = alone.here.run("cat", "/proc/net/snmp6")
    assert re.search(r"^Udp6InCsumErrors\s+1$", snmp, re.M), snmp


def test_a_batch_goes_line_by_line(uxfrm, alone):
    batch = alone.gateway.directory / "ports"
    batch.write_text("fou add port 5001 gue # one\nip fou add port 5001 gue\nfou add port 5002 gue\n")
    code, text = own(uxfrm, alone.here)("", f"-batch {batch}")
    assert code == 1 and f"Command failed {batch}:2" in text
    assert own(uxfrm, alone.here)("show")[1] == "port 5001 gue\n"
    assert own(uxfrm, alone.here)("", f"-force -batch {batch}")[0] == 1
    missing = own(uxfrm, alone.here)("", "-batch /no/such")
    assert missing == (1, 'Cannot open file "/no/such" for reading: No such file or directory (os error 2)\n')
    assert own(uxfrm, alone.here)("show")[1] == "port 5002 gue\nport 5001 gue\n"


def test_there_is_room_for_some_hundred_and_no_more(uxfrm, alone):
    batch = alone.gateway.directory / "ports"
    batch.write_text("".join(f"fou add port {port} gue\n" for port in range(6000, 6300)))
    code, text = own(uxfrm, alone.here)("", f"-batch {batch}")
    assert code == 1 and "one loop waits for 256 interfaces and sockets of tunnels at the most" in text
    assert len(own(uxfrm, alone.here)("show")[1].splitlines()) == 254
    assert unmodified(uxfrm, alone.here)("show") == own(uxfrm, alone.here)("show")
    assert own(uxfrm, alone.here)("del port 6000") == (0, "")
    assert own(uxfrm, alone.here)("add port 7000 gue") == (0, "")
