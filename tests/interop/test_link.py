"""Tunnels while the gateway runs: `uxfrm link`, each a TUN of its name that comes and goes, with
others' traffic going on; its text beside a Linux kernel's."""

import json
import subprocess

import pytest

import echo
import patience
import topology
from gateway import CONTROLLED, Gateway
from probes import Probes
from topology import HERE, THERE

TCP_BYTES = 256 * 1024
INSIDE = ("172.16.9.1", "172.16.9.2")
ENDS = f"remote {THERE.outer[4]} local {HERE.outer[4]}"
BACK = f"remote {HERE.outer[4]} local {THERE.outer[4]}"


def client(uxfrm, namespace, what):
    """`uxfrm fou` or `uxfrm link`: the exit code and all that was printed."""

    def run(words, options=""):
        command = ["ip", "netns", "exec", namespace.name, uxfrm, what, *options.split(), *words.split()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience.SECONDS)
        return done.returncode, done.stdout

    return run


@pytest.fixture
def two(uxfrm):
    """Two gateways without tunnels."""
    with topology.TwoGateways("wire0") as network:
        for namespace, side in ((network.left, HERE), (network.right, THERE)):
            topology.place(namespace, "wire0", side)
        network.here, network.there = Gateway(uxfrm, network.left), Gateway(uxfrm, network.right)
        for gateway in (network.here, network.there):
            network.callback(gateway.close)
            gateway.start(more=CONTROLLED)
        network.sides = [(network.left, ENDS, INSIDE[0]), (network.right, BACK, INSIDE[1])]
        yield network


def done(outcome):
    assert outcome[0] == 0, outcome[1]
    return outcome[1]


def make(uxfrm, two, encap="encap fou encap-sport auto encap-dport 5555", port="ipproto 4"):
    """The series' tunnel at both ends."""
    for namespace, ends, inside in two.sides:
        if port:
            done(client(uxfrm, namespace, "fou")(f"add port 5555 {port}"))
        done(client(uxfrm, namespace, "link")(f"add name tun1 up type ipip {ends} ttl 225 {encap}"))
        namespace.address("tun1", f"{inside}/30")


def transfer(two):
    two.left.ping(*INSIDE)
    two.right.ping(INSIDE[1], INSIDE[0])
    with two.left.entered():
        echo.transfer(*INSIDE, TCP_BYTES)


def shown(uxfrm, namespace, name="tun1"):
    return json.loads(done(client(uxfrm, namespace, "link")(f"show {name}", "-j -s")))[0]


def links(namespace):
    return {link["ifname"] for link in json.loads(namespace.run("ip", "-j", "link"))}


def test_a_tunnel_carries_from_its_answer_on_until_it_is_deleted(uxfrm, two):
    make(uxfrm, two)
    transfer(two)
    link, fou = client(uxfrm, two.left, "link"), client(uxfrm, two.left, "fou")
    assert "tun1" in links(two.left)
    assert done(link("del tun1")) == "" and "tun1" not in links(two.left)
    assert link("show")[1] == "" and link("del tun1") == (1, 'Cannot find device "tun1"\n')
    assert link("show tun1") == (1, 'Device "tun1" does not exist.\n')
    assert done(fou("del port 5555")) == ""
    # And once more.
    done(fou("add port 5555 ipproto 4"))
    done(link(f"add name tun1 up type ipip {ENDS} encap fou encap-dport 5555"))
    two.left.address("tun1", f"{INSIDE[0]}/30")
    transfer(two)


def test_others_go_on_while_tunnels_come_and_go(uxfrm, two):
    """Not one datagram is lost of a tunnel that has nothing to do with those that come and go
    beside it."""
    make(uxfrm, two)
    link, fou = client(uxfrm, two.left, "link"), client(uxfrm, two.left, "fou")
    probes = Probes(two.left, *INSIDE)
    for number in range(8):
        other = f"remote 10.9.0.{100 + number} local {HERE.outer[4]}"
        done(fou(f"add port {8100 + number} gue"))
        done(link(f"add other{number} up type {('gre', 'sit', 'ipip')[number % 3]} {other} encap gue encap-dport 8100"))
        if number % 2:
            done(link(f"del other{number}"))
            done(fou(f"del port {8100 + number}"))
    assert probes.lost() == [] and probes.sent > 0
    assert {f"other{number}" for number in (0, 2, 4, 6)} < links(two.left)


def test_super_packets_of_a_tunnel_leave_as_one_train(uxfrm, two):
    make(uxfrm, two)
    assert "gso_max_segs 44 " in two.left.ip("-d link show dev tun1")


def test_a_change_keeps_what_it_does_not_say(uxfrm, two):
    make(uxfrm, two)
    before = shown(uxfrm, two.left)
    for namespace, _, _ in two.sides:
        link, fou = client(uxfrm, namespace, "link"), client(uxfrm, namespace, "fou")
        done(fou("del port 5555"))
        done(fou("add port 5555 gue"))
        done(link("change tun1 type ipip encap gue encap-csum"))
    after = shown(uxfrm, two.left)
    info = before["linkinfo"]["info_data"]
    encap = info["encap"] | {"type": "gue", "csum": True}
    assert after["linkinfo"]["info_data"] == info | {"encap": encap}
    assert (before["mtu"], after["mtu"], after["ifindex"]) == (1472, 1468, before["ifindex"])
    transfer(two)
    link = client(uxfrm, two.left, "link")
    assert link("change tun1 type gre") == (2, "RTNETLINK answers: Operation not supported\n")
    assert link("change no-such type gre") == (1, 'Cannot find device "no-such"\n')


def test_refusals_are_the_kernels(uxfrm, two):
    link = client(uxfrm, two.left, "link")
    done(link(f"add tun1 type ipip {ENDS}"))
    for line, text in [
        (f"add tun1 type gre {ENDS}", "RTNETLINK answers: File exists"),
        (f"add tun2 type ipip {ENDS}", "RTNETLINK answers: File exists"),
        ("add wire0 type sit remote 10.9.0.7", "RTNETLINK answers: File exists"),
        ("add uxfrm0 type sit remote 10.9.0.7", "RTNETLINK answers: File exists"),
        ("del wire0", "Error: This interface is no tunnel of uxfrm."),
        ("add t type ipip remote 10.9.0.7 local 10.9.0.1 encap fou", "Must specify encap-dport with encap fou or gue"),
        ("add t type vxlan", 'Error: argument "vxlan" is wrong: the type is ipip, sit, gre, ip6tnl or ip6gre'),
        ("add t type ipip ttl 7 bogus", '"bogus"? expected an option of this type of tunnel (remote, local, ttl, tos, encap …)'),
    ]:
        code, answer = link(line)
        assert (code in (2, 255), answer) == (True, f"{text}\n"), line
    assert [one["ifname"] for one in json.loads(done(link("show", "-j")))] == ["tun1"]
    done(link("add tun2 type ipip remote 10.9.0.77"))
    assert link(f"change tun2 type ipip {ENDS}") == (2, "RTNETLINK answers: File exists\n")


def test_a_link_is_down_until_it_is_set_up_and_gone_when_somebody_deletes_it(uxfrm, two):
    link = client(uxfrm, two.left, "link")
    done(link(f"add tun1 mtu 1300 type gre {ENDS} key 7"))
    assert "UP" not in shown(uxfrm, two.left)["flags"]
    two.left.ip("link set tun1 up")
    assert "UP" in shown(uxfrm, two.left)["flags"] and shown(uxfrm, two.left)["mtu"] == 1300
    two.left.ip("link del tun1")
    assert done(link("show")) == ""
    done(link(f"add tun1 up type gre {ENDS} key 7"))
    assert "UP" in shown(uxfrm, two.left)["flags"]
    two.here.stop()
    assert "tun1" not in links(two.left)


def test_configured_tunnels_can_be_changed_and_deleted(uxfrm, two):
    two.here.stop()
    batch = two.here.directory / "tunnels.batch"
    batch.write_text(f"fou add port 5555 ipproto 4\nlink add tun1 type ipip {ENDS} encap fou encap-dport 5555\n")
    two.here.start(more=f"\n[tunnel]\nbatch = [{json.dumps(str(batch))}]\n{CONTROLLED}")
    link, fou = client(uxfrm, two.left, "link"), client(uxfrm, two.left, "fou")
    assert fou("show") == (0, "port 5555 ipproto 4\n")
    assert "UP" in shown(uxfrm, two.left)["flags"]
    done(link("change tun1 type ipip ttl 9"))
    assert shown(uxfrm, two.left)["linkinfo"]["info_data"]["ttl"] == 9
    done(link("del tun1"))
    done(fou("del port 5555"))
    assert (link("show"), fou("show")) == ((0, ""), (0, ""))


def test_each_tunnel_counts_what_it_carried_and_dropped(uxfrm, two):
    make(uxfrm, two)
    two.left.ping(*INSIDE, count=10, size=100)
    left, right = shown(uxfrm, two.left), shown(uxfrm, two.right)
    for link in (left, right):
        assert link["stats64"]["rx"] | {"packets": 10, "bytes": 1280} == link["stats64"]["rx"]
        assert link["stats64"]["tx"] | {"packets": 10, "bytes": 1280, "dropped": 0} == link["stats64"]["tx"]
        assert link["drops"] == {}
    port = json.loads(done(client(uxfrm, two.right, "fou")("show", "-j -s")))[0]
    assert port["stats"]["rx"] == {"bytes": 1280, "packets": 10, "dropped": 0}
    # Into itself, which the kernel counts as collisions.
    two.left.ip(f"route add {THERE.outer[4]}/32 dev tun1 src {HERE.outer[4]}")
    two.left.run("ping", "-c", "2", "-i", "0.1", "-W", "1", INSIDE[1], check=False)
    left = shown(uxfrm, two.left)
    assert left["drops"] == {"tunnel_out_recursion": 2}
    assert (left["stats64"]["tx"]["dropped"], left["stats64"]["tx"]["collisions"]) == (2, 2)
    text = done(client(uxfrm, two.left, "link")("show tun1", "-s"))
    assert "    drops: tunnel_out_recursion 2\n" in text and "TX:  bytes packets errors dropped carrier collsns" in text


KINDS = [
    "ipip remote 10.9.0.7 local 10.9.0.1 ttl 64",
    "ipip remote 10.9.0.7 tos 10 ttl inherit nopmtudisc",
    "sit remote 10.9.0.7 local 10.9.0.1 mode ip6ip ttl 64 tos inherit",
    "sit remote 10.9.0.7",
    "gre remote 10.9.0.7 local 10.9.0.1 key 258 seq icsum ttl 9",
    "gre remote 10.9.0.7 ikey 1.2.3.4 okey 9 ocsum tos 4 nopmtudisc ignore-df",
    "ip6tnl remote fd09::7 local fd09::1 mode ip6ip6 hoplimit 7 tclass inherit flowlabel abc",
    "ip6tnl remote fd09::7 local fd09::1 encaplimit none mode ipip6 tclass 10",
    "ip6tnl remote fd09::7 local fd09::1 mode any encaplimit 3 hoplimit inherit flowlabel inherit",
    "ip6gre remote fd09::7 local fd09::1 key 258 seq icsum hoplimit 9",
    "ip6gre remote fd09::7 local fd09::1 ikey 1.2.3.4 okey 9 ocsum encaplimit none tclass inherit flowlabel abc",
]
ENCAP = [
    "encap fou encap-dport 5555",
    "encap gue encap-sport 7 encap-dport 6 encap-csum encap-remcsum",
    "encap gue encap-sport auto encap-dport 6 encap-udp6-csum noencap-remcsum",
    "encap fou encap-sport 65535 encap-dport 65535 noencap-csum noencap-udp6-csum",
]
OVER_V4, OVER_V6 = "remote 10.9.0.7 local 10.9.0.1", "remote fd09::7 local fd09::1"
TYPES = [f"{kind} {OVER_V4}" for kind in ("ipip", "sit", "gre")] + [f"{kind} {OVER_V6}" for kind in ("ip6tnl", "ip6gre")]
IN_UDP = [f"{kind} {encap}" for kind in TYPES for encap in ENCAP]


@pytest.fixture(scope="module")
def beside(uxfrm, qemu_network):
    """A gateway without tunnels, and Linux."""
    gateway = Gateway(uxfrm, qemu_network.here)
    gateway.start(more=CONTROLLED)
    yield client(uxfrm, qemu_network.here, "link"), qemu_network.linux
    gateway.close()


@pytest.mark.parametrize("words", KINDS + IN_UDP)
def test_the_text_is_the_kernels(words, beside):
    """`ip -d link show` of a Linux kernel's tunnel and `uxfrm link show` of ours: the same line
    of the tunnel, the same object in JSON."""
    link, linux = beside
    try:
        done(link(f"add tun1 type {words}"))
        linux.run(f"ip link add tun1 type {words}")
        theirs, ours = linux.run("ip -d link show tun1"), done(link("show tun1"))
        assert tunnel(ours) == tunnel(theirs)
        assert device(ours) == device(theirs)
        theirs, ours = linux.run("ip -j -d link show tun1"), done(link("show tun1", "-j"))
        theirs, ours = json.loads(theirs)[0], json.loads(ours)[0]
        assert ours["linkinfo"] == theirs["linkinfo"]
        # Linux forgets UDP of a `sit`: 1480 whatever is around its packets (seen with 6.1).
        assert words.startswith("sit") and "encap" in words or ours["mtu"] == theirs["mtu"]
    finally:
        link("del tun1")
        linux.run("ip link del tun1", check=False)


def device(text):
    """The words of an interface's addresses; a permanent one is made up by the kernel."""
    return text.splitlines()[1].split(" promiscuity")[0].split(" permaddr")[0]


def tunnel(text):
    """The words of a tunnel."""
    return text.splitlines()[2].split("addrgenmode")[0].split("numtxqueues")[0].rstrip()
