"""Tunnels that do not work, each for one reason: from the near end alone `uxfrm why`, `status` or
`drops` names the cause, or the likeliest ones.

The near end is the left gateway. Between both a router can filter, translate and cut.
"""

import dataclasses
import json
import shutil
import socket
import subprocess
import typing

import pytest

import patience
import topology
from gateway import CONTROLLED
from namespace import veth

PORT = 9
KEYS = {"there": "0x" + "4d1b" * 10, "back": "0x" + "93c2" * 10}
WRONG_KEY = "0x" + "0bad" * 10
NEAR, FAR, ELSEWHERE = "10.9.0.1", "10.8.0.2", "10.8.0.77"
NEAR_NET, FAR_NET = "10.1.0.0/24", "10.2.0.0/24"
NEAR_HOST, FAR_HOST = "10.1.0.2", "10.2.0.2"
SPIS = {"there": "0x1001", "back": "0x1002"}
NEAR_GATEWAY = "10.1.0.1"  # its address in the net that is protected
DATAGRAMS = 20
SILENCE_SECONDS = 30 + patience.SECONDS  # a tunnel is one-way after half a minute
MTU = 1400


class SitesBehindRouter(topology.Sites):
    """Two sites and a router between them, which can drop, translate and cut.

        ┌─ left ─────┐      ┌─ faulty router ───────────┐      ┌─ right ────┐
        │      wire0 ┼──────┼ near                  far ┼──────┼ wire0      │
        └────────────┘      └───────────────────────────┘      └────────────┘
              10.9.0.1       10.9.0.254       10.8.0.254        10.8.0.2
    """

    names = "faulty-"

    def _join(self):
        self.router = self.namespace("faulty-router")
        veth(self.left, "wire0", self.router, "near")
        veth(self.router, "far", self.right, "wire0")
        self.left.address("wire0", f"{NEAR}/24")
        self.right.address("wire0", f"{FAR}/24")
        self.router.address("near", "10.9.0.254/24")
        self.router.address("far", "10.8.0.254/24")
        self.left.ip("route add default via 10.9.0.254")
        self.right.ip("route add default via 10.8.0.254")
        self.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        # So what leaves plain arrives.
        self.router.ip(f"route add {NEAR_NET} via {NEAR}")
        self.router.ip(f"route add {FAR_NET} via {FAR}")


def state(way, source, destination):
    return (
        f"xfrm state add src {source} dst {destination} proto esp spi {SPIS[way]} reqid 1 mode tunnel"
        f" replay-window 128 aead rfc4106(gcm(aes)) {KEYS[way]} 128"
    )


def policy(direction, source, destination, outer_source, outer_destination):
    return (
        f"xfrm policy add src {source} dst {destination} dir {direction}"
        f" tmpl src {outer_source} dst {outer_destination} proto esp reqid 1 mode tunnel"
    )


def gateway_lines(near, far, net, other_net, there, back):
    """The lines of one gateway by what they are."""
    return {
        "out state": state(there, near, far),
        "in state": state(back, far, near),
        "out": policy("out", net, other_net, near, far),
        "in": policy("in", other_net, net, far, near),
        "fwd": policy("fwd", other_net, net, far, near),
    }


class Tunnel:
    """Both gateways, whose lines a fault changes before they start."""

    def __init__(self, uxfrm, sites, running):
        self.sites, self._uxfrm = sites, uxfrm
        self.near_lines = gateway_lines(NEAR, FAR, NEAR_NET, FAR_NET, "there", "back")
        self.far_lines = gateway_lines(FAR, NEAR, FAR_NET, NEAR_NET, "back", "there")
        self.near, self.far = running.gateway(uxfrm, sites.left), running.gateway(uxfrm, sites.right)

    def start(self):
        self.near.start(list(self.near_lines.values()), more=CONTROLLED)
        self.far.start(list(self.far_lines.values()), more=CONTROLLED)

    def send(self, host, source, destination, size=100, count=DATAGRAMS):
        with host.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((source, 0))
            for _ in range(count):
                try:
                    sender.sendto(bytes(size), (destination, PORT))
                except OSError:
                    pass  # the kernel tells a sender of errors of earlier datagrams

    def there(self, **options):
        self.send(self.sites.left_host, NEAR_HOST, FAR_HOST, **options)

    def back(self, **options):
        self.send(self.sites.right_host, FAR_HOST, NEAR_HOST, **options)

    def asked(self, *words):
        """What a command prints at the near end, whatever its exit code."""
        return self.sites.left.run(str(self._uxfrm), *words, check=False)

    def why_out(self):
        return self.asked("why", NEAR_HOST, FAR_HOST, "udp", str(PORT))

    def why_in(self, spi=SPIS["back"]):
        return self.asked("why", FAR_HOST, NEAR_HOST, "udp", str(PORT), "dir", "in", "spi", spi)

    def reasons(self):
        lines = (line.split() for line in self.asked("stat", "--reasons").splitlines())
        return {name: int(count) for name, count in lines if count != "0"}

    def status(self):
        return json.loads(self.asked("status", "-j"))

    def status_text(self):
        return self.asked("status")

    def sends_and_asks(self):
        """Silence means something only while we send."""
        self.there(count=1)
        return self.status_text()

    def probe(self):
        return self.asked("probe", FAR_HOST, "--source", NEAR_GATEWAY, "--patience", "300")

    def drops(self):
        return self.asked("drops")


@pytest.fixture(scope="module")
def sites():
    with SitesBehindRouter() as made:
        yield made


@pytest.fixture
def tunnel(uxfrm, sites):
    with topology.Hosts() as running:
        yield Tunnel(uxfrm, sites, running)
    sites.router.run("nft", "flush ruleset")
    sites.left.run("sysctl", "-qw", "net.ipv4.ip_forward=1")


def says(ask, *words, seconds=patience.SECONDS):
    """Waits until the answer has all the words."""
    return patience.wait_for(
        lambda: (said := ask()) and all(word in said for word in words) and said, lambda: f"{words} in:\n{ask()}", seconds
    )


def filter_at_router(tunnel, rule):
    tunnel.sites.router.run("nft", f"table ip fault {{ chain pass {{ type filter hook forward priority 0; {rule} drop; }}; }}")


@dataclasses.dataclass
class Fault:
    """What is wrong, the traffic that shows it, and what the near end says."""

    name: str
    break_it: typing.Callable
    traffic: str
    ask: typing.Callable
    words: tuple


def change(end, line, old, new):
    def break_it(tunnel):
        lines = getattr(tunnel, f"{end}_lines")
        assert old in lines[line]
        lines[line] = lines[line].replace(old, new)

    return break_it


def leave_out(end, *names):
    def break_it(tunnel):
        for name in names:
            del getattr(tunnel, f"{end}_lines")[name]

    return break_it


def end_early(end, line):
    """A hard limit that is reached at once."""

    def break_it(tunnel):
        lines = getattr(tunnel, f"{end}_lines")
        lines[line] = lines[line].replace(" mode tunnel", " mode tunnel limit packet-hard 5")

    return break_it


SILENT = ("received none", "has never been answered", "1. has the peer another key or SPI", "run `uxfrm drops` there", "2. is ESP (IP protocol 50) filtered", "is there a NAT", "do the peer's policies", "a way back")

FAULTS = [
    Fault("wrong key", change("far", "out state", KEYS["back"], WRONG_KEY), "back", Tunnel.drops, ("in_forged", SPIS["back"][2:])),
    Fault("wrong key, why", change("far", "out state", KEYS["back"], WRONG_KEY), "back", Tunnel.why_out, ("wrong ICV: the keys or algorithms of both ends differ",)),
    Fault("wrong SPI", change("far", "out state", SPIS["back"], "0x1009"), "back", Tunnel.drops, ("in_no_state", "0x00001009")),
    Fault("wrong SPI, path", change("far", "out state", SPIS["back"], "0x1009"), "back", lambda tunnel: tunnel.there() or tunnel.why_out(), ("warn path", "by SPI 0x00001009, which no state here has", "in_no_state", "the state for it has 0x00001002", "cause:")),
    Fault("wrong SPI, status", change("far", "out state", SPIS["back"], "0x1009"), "back", Tunnel.status_text, ("by SPI 0x00001009, which no state here has",)),
    Fault("wrong SPI, why", change("far", "out state", SPIS["back"], "0x1009"), "back", lambda tunnel: tunnel.why_in("0x1009"), ("no state has dst 10.9.0.1 spi 0x00001009", "nearest", "0x00001002")),
    Fault("near selector", change("near", "out", FAR_NET, "10.3.0.0/24"), "there", Tunnel.why_out, ("leaves PLAIN by wire0", "dst 10.3.0.0/24", "the destination is not in it")),
    Fault("far selector", change("far", "out", NEAR_NET, "10.3.0.0/24"), "back", lambda tunnel: json.dumps(tunnel.reasons()), ("in_unprotected",)),
    Fault("near reqid", change("near", "out", "reqid 1", "reqid 2"), "there", Tunnel.why_out, ("no state fits", "it has reqid 1, the template reqid 2")),
    Fault("far reqid", change("far", "out", "reqid 1", "reqid 2"), "both", Tunnel.why_out, SILENT),
    Fault("far policies missing", leave_out("far", "out", "in", "fwd"), "there", Tunnel.why_out, SILENT),
    Fault("fwd missing", leave_out("near", "fwd"), "back", Tunnel.why_in, ("in_no_policy", "dir in", "dir fwd for all others")),
    Fault("fwd missing, status", leave_out("near", "fwd"), "back", Tunnel.status_text, ("one-way (nothing gets in: of ", "were dropped afterwards, the last", "in_no_policy")),
    Fault("wrong key, status", change("far", "out state", KEYS["back"], WRONG_KEY), "back", Tunnel.status_text, ("idle (nothing so far; ", "packets that came by 0x00001002 were dropped, the last", "in_forged")),
    Fault("fwd missing, step", leave_out("near", "fwd"), "back", Tunnel.why_in, ("fail policy", "what came in ESP needs one")),
    Fault("wrong key, why in", change("far", "out state", KEYS["back"], WRONG_KEY), "back", Tunnel.why_in, ("fail path", "in_forged", "does not arrive (path)")),
    Fault("near in state expired", end_early("near", "in state"), "back", lambda tunnel: tunnel.back() or tunnel.status_text(), ("down (", "state 0x00001002 expired ", "by SPI 0x00001002, whose state expired")),
    Fault("near in state expired, why", end_early("near", "in state"), "back", Tunnel.why_in, ("no state has dst", "that state expired ")),
    Fault("near state's selector", change("near", "out state", KEYS["there"] + " 128", KEYS["there"] + " 128 sel src 10.3.0.0/24 dst 10.4.0.0/24"), "there", Tunnel.status_text, ("down (no state takes what is to leave: ", "out_no_state")),
    Fault("fwd missing, drops", leave_out("near", "fwd"), "back", Tunnel.drops, ("in_no_policy",)),
    Fault("near state expired", end_early("near", "out state"), "there", Tunnel.status_text, ("down", "expired")),
    Fault("near state expired, why", end_early("near", "out state"), "there", Tunnel.why_out, ("fail state", "state 0x00001001 to 10.8.0.2 reached a hard limit")),
    Fault("far policies missing, status", leave_out("far", "out", "in", "fwd"), "there", Tunnel.status_text, ("up (nothing has come back yet)",)),
    Fault("far state expired", end_early("far", "out state"), "back", lambda tunnel: tunnel.sends_and_asks(), ("one-way", "received nothing for")),
    Fault("MTU hole", lambda tunnel: filter_at_router(tunnel, "ip length > 1300"), "none", lambda tunnel: tunnel.probe(), ("lost, and nobody says so (an MTU hole)", "Set `mtu 1300` on the route to", "ip route change", "so that senders are told")),
    Fault("peer has another key", change("far", "in state", KEYS["there"], WRONG_KEY), "there", Tunnel.why_out, SILENT),
    Fault("peer has another SPI", change("far", "in state", SPIS["there"], "0x1009"), "there", Tunnel.why_out, SILENT),
    Fault("ESP filtered", lambda tunnel: filter_at_router(tunnel, "ip protocol esp"), "there", Tunnel.why_out, SILENT),
    Fault("NAT on raw ESP", lambda tunnel: filter_at_router(tunnel, 'iifname "far" ip protocol esp'), "both", Tunnel.why_out, SILENT),
    Fault("wrong peer", lambda tunnel: wrong_peer(tunnel), "there", Tunnel.why_out, (f"is {ELSEWHERE} the peer",)),
    Fault("ip_forward is 0", lambda tunnel: tunnel.sites.left.run("sysctl", "-qw", "net.ipv4.ip_forward=0"), "back", Tunnel.why_in, ("net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1")),
]


def reject(namespace, hook, match, kind):
    """A filter that answers ESP with an ICMP error."""
    namespace.run("nft", f"table inet fault {{ chain refuse {{ type filter hook {hook} priority 0; {match} reject with {kind}; }}; }}")


def wrong_peer(tunnel):
    """The near end's states and policies have another gateway's address."""
    tunnel.near_lines = gateway_lines(NEAR, ELSEWHERE, NEAR_NET, FAR_NET, "there", "back")


ROUTER = "10.9.0.254"
TOLD = [
    # As a Linux whose gateway is gone answers, where the kernel has no ESP of its own.
    ("peer takes no ESP", lambda tunnel: reject(tunnel.sites.right, "input", "ip protocol esp", "icmp type prot-unreachable"), f"{FAR} answers that it takes no ESP (ICMP protocol unreachable, ", "is uxfrm, or another IPsec, running there?", "protocol-unreachable"),
    ("peer rejects", lambda tunnel: reject(tunnel.sites.right, "input", "ip protocol esp", "icmp type port-unreachable"), f"{FAR} answers that nothing takes it there (ICMP port unreachable, ", "does a packet filter reject it?", "port-unreachable"),
    ("no such host", lambda tunnel: wrong_peer(tunnel), f"router {ROUTER} says that there is no host {ELSEWHERE} (ICMP host unreachable, ", f"is {ELSEWHERE} the peer", "host-unreachable"),
    # A route that says so is rate limited twice over by Linux, which then rarely answers.
    ("no route", lambda tunnel: reject(tunnel.sites.router, "forward", "ip protocol esp", "icmp type net-unreachable"), f"router {ROUTER} says that it has no route to {FAR} (ICMP net unreachable, ", f"is {FAR} the peer", "net-unreachable"),
    ("filter", lambda tunnel: reject(tunnel.sites.router, "forward", "ip protocol esp", "icmp type admin-prohibited"), f"router {ROUTER} says that a packet filter forbids packets to {FAR} (ICMP admin prohibited, ", "does it let ESP pass", "admin-prohibited"),
]


@pytest.mark.parametrize(("break_it", "said", "asked", "kind"), [told[1:] for told in TOLD], ids=[told[0] for told in TOLD])
def test_the_near_end_tells_what_the_network_says(break_it, said, asked, kind, tunnel):
    """`why`, `status` and the log; until the peer is heard again."""
    break_it(tunnel)
    tunnel.start()
    try:
        tunnel.there()
        # Routers limit how often they answer.
        text = says(lambda: tunnel.there(count=1) or tunnel.why_out(), "warn path", said, asked, seconds=SILENCE_SECONDS)
        assert text.index(said) < text.index("has the peer another key or SPI"), text
        says(tunnel.status_text, said, asked)
        told = tunnel.status()["tunnels"][0]["icmp_errors"]
        assert [one["kind"] for one in told] == [kind] and told[0]["errors"] >= 1, told
        says(tunnel.near.log, "ICMP error about ESP: ", said)
        assert tunnel.near.log().count("ICMP error about ESP") < 5
    finally:
        for namespace in (tunnel.sites.router, tunnel.sites.right):
            namespace.run("nft", "delete table inet fault", check=False)
    if kind == "host-unreachable" and ELSEWHERE in said:
        return  # it is nobody's address

    def is_forgotten():
        tunnel.there(count=1)
        tunnel.back(count=1)
        return said not in tunnel.why_out() and "icmp_errors" not in tunnel.status()["tunnels"][0]

    patience.wait_for(is_forgotten, tunnel.why_out)


def test_errors_about_other_packets_are_not_believed(tunnel):
    """An SPI that no state has, another source, and a protocol that is not ESP."""
    tunnel.start()
    tunnel.there()
    script = f"""
from scapy.all import ICMP, IP, UDP, Raw, conf, send
conf.verb = 0
esp = lambda source, spi: IP(src=source, dst="{FAR}", proto=50) / Raw(spi.to_bytes(4, "big") + bytes(4))
for quoted in (esp("{NEAR}", 0x4711), esp("10.9.0.77", {SPIS["there"]}), IP(src="{NEAR}", dst="{FAR}") / UDP(dport=9)):
    send(IP(dst="{NEAR}") / ICMP(type=3, code=2) / quoted)
send(IP(dst="{NEAR}") / ICMP(type=3, code=13) / esp("{NEAR}", {SPIS["there"]}))
"""
    tunnel.sites.router.run("/usr/bin/python3", "-c", script)
    # They come in order: what is told of the last one is told of those before it, too.
    patience.wait_for(lambda: tunnel.status()["tunnels"][0].get("icmp_errors"), tunnel.status_text)
    told = tunnel.status()["tunnels"][0]["icmp_errors"]
    assert [(one["kind"], one["errors"]) for one in told] == [("admin-prohibited", 1)], told


def test_the_near_end_tells_what_the_network_says_of_esp_in_ipv6(tunnel):
    near, far, gone, router = "fd09::1", "fd08::2", "fd08::77", "fd09::fe"
    left, middle = tunnel.sites.left, tunnel.sites.router
    left.address("wire0", f"{near}/64")
    middle.address("near", f"{router}/64")
    middle.address("far", "fd08::fe/64")
    middle.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
    left.ip(f"-6 route replace default via {router}")
    try:
        for peer, said in (
            (gone, f"router {router} says that there is no host {gone} (ICMP host unreachable, "),
            (far, f"router {router} says that a packet filter forbids packets to {far} (ICMP admin prohibited, "),
        ):
            lines = gateway_lines(near, peer, NEAR_NET, FAR_NET, "there", "back")
            lines["out state"] += " flag af-unspec"
            lines["in state"] += " flag af-unspec"
            reject(middle, "forward", f"ip6 daddr {far}", "icmpv6 type admin-prohibited")
            tunnel.near.start(list(lines.values()), more=CONTROLLED)
            tunnel.there()
            says(lambda: tunnel.there(count=1) or tunnel.why_out(), "warn path", said, seconds=SILENCE_SECONDS)
            says(tunnel.status_text, said)
            tunnel.near.stop()
            middle.run("nft", "flush ruleset")
    finally:
        left.ip(f"-6 route del default via {router}")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_near_end_names(fault, tunnel):
    fault.break_it(tunnel)
    tunnel.start()
    if fault.traffic in ("there", "both"):
        tunnel.there()
    if fault.traffic in ("back", "both"):
        tunnel.back()
    said = says(lambda: fault.ask(tunnel), *fault.words, seconds=SILENCE_SECONDS)
    assert KEYS["there"][2:] not in said


def test_a_tunnel_that_drops_what_it_receives_is_not_well_until_it_is_mended(tunnel):
    fwd = tunnel.near_lines.pop("fwd")
    tunnel.start()
    tunnel.back()
    says(tunnel.status_text, "one-way (nothing gets in: of ")
    (told,) = tunnel.status()["tunnels"]
    assert (told["reason"]["kind"], told["reason"]["drop_reason"]) == ("received-dropped", "in_no_policy"), told
    command = ["ip", "netns", "exec", tunnel.sites.left.name, str(tunnel._uxfrm), "status"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    tunnel.asked(*fwd.split())
    tunnel.back(count=10 * DATAGRAMS)
    says(tunnel.status_text, "  up")
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_a_guard_that_is_left_is_told(tunnel):
    tunnel.start()
    tunnel.near.kill()
    for words in (("status",), ("why", NEAR_HOST, FAR_HOST), ("doctor",)):
        command = ["ip", "netns", "exec", tunnel.sites.left.name, str(tunnel._uxfrm), *words]
        run = subprocess.run(command, capture_output=True, text=True)
        assert "stays refused" in run.stdout + run.stderr and "`uxfrm clean` lets go" in run.stdout + run.stderr, run
        if words == ("doctor",):
            (line,) = (line for line in run.stdout.splitlines() if line.split()[1] == "gateway")
            assert "mend: uxfrm run CONFIG" in line, line
    tunnel.asked("clean")


def test_drops_have_a_line_in_the_log(tunnel):
    """One every ten seconds for each reason and state, however many packets there are."""
    change("far", "out state", KEYS["back"], WRONG_KEY)(tunnel)
    tunnel.start()
    tunnel.back(count=500)
    says(tunnel.near.log, "packets dropped", 'reason="in_forged"', SPIS["back"][2:])
    assert tunnel.near.log().count("packets dropped") < 10


def test_a_dropped_packet_is_explained_by_its_number(tunnel):
    change("far", "out state", SPIS["back"], "0x1009")(tunnel)
    tunnel.start()
    tunnel.back()
    says(tunnel.drops, "#0 in_no_state")
    says(lambda: tunnel.asked("why", "--drop", "0"), "no state has dst 10.9.0.1 spi 0x00001009", "0x00001002", "was dropped: in_no_state")
    assert "no record has number 4711" in tunnel.asked("why", "--drop", "4711")


def test_a_probe_goes_by_the_tunnel_or_not_at_all(tunnel):
    """Without `--source` it takes an address that is protected, though the kernel would not."""
    tunnel.start()
    probe = [str(tunnel._uxfrm), "probe", "--patience", "300"]
    said = tunnel.sites.left.run(*probe, FAR_HOST)
    assert f"from {NEAR_GATEWAY} to {FAR_HOST}: packets of up to" in said and f"in ESP to {FAR}" in said, said
    said = tunnel.sites.left.run(*probe, FAR_HOST, "--source", NEAR, check=False)
    assert "would leave PLAIN" in said and "nothing was sent" in said, said
    command = ["ip", "netns", "exec", tunnel.sites.left.name, *probe, FAR_HOST, "--source", NEAR]
    assert subprocess.run(command, capture_output=True).returncode == 1


def forget_numbers(gateway):
    """A restart without the store of sequence numbers."""
    gateway.stop()
    shutil.rmtree(gateway.directory / "sequences")
    gateway.launch()


def test_the_near_end_names_a_peer_that_numbers_anew(tunnel):
    tunnel.start()
    tunnel.back()
    says(tunnel.why_out, "received")
    forget_numbers(tunnel.far)
    tunnel.back()
    says(tunnel.drops, "in_replay", SPIS["back"][2:])
    says(tunnel.why_out, "warn path", "in_replay")


def test_the_near_end_names_packets_that_its_own_filter_refuses(tunnel):
    """They do not leave, so `why` fails; once they leave again it forgets them."""
    tunnel.start()
    tunnel.there()
    left = tunnel.sites.left
    left.run("nft", "table ip fault { chain refuse { type filter hook output priority 0; ip protocol esp drop; }; }")
    try:
        tunnel.there()
        said = says(tunnel.why_out, "fail path", "port_refused (EPERM: this host's own packet filter drops them)", "nft list ruleset")
        assert "does not get through (path)" in said, said
        records = [json.loads(line) for line in tunnel.asked("drops", "-j", "--reason", "port_refused").splitlines()]
        assert records and all(record["esp"]["destination"] == FAR for record in records), records
        assert all(record["state"]["spi"].endswith(SPIS["there"][2:]) for record in records), records
        assert all(record["send_error"].startswith("EPERM: ") for record in records), records
        # Counts by tunnel are up to a second old.
        patience.wait_for(lambda: tunnel.status()["tunnels"][0]["drops"].get("port_refused"), tunnel.status_text)
        command = ["ip", "netns", "exec", left.name, str(tunnel._uxfrm), "why", NEAR_HOST, FAR_HOST]
        assert subprocess.run(command, capture_output=True).returncode == 1
    finally:
        left.run("nft", "delete table ip fault")

    def leaves():
        tunnel.there(count=1)
        return "fail path" not in tunnel.why_out()

    patience.wait_for(leaves, tunnel.why_out)


@pytest.mark.parametrize(
    ("break_it", "mend_it", "words"),
    [
        ("route add unreachable 10.8.0.2/32", "route del unreachable 10.8.0.2/32", ("EHOSTUNREACH: this host has no route to the peer", "ip route get PEER")),
        ("route add prohibit 10.8.0.2/32", "route del prohibit 10.8.0.2/32", ("EACCES: a route or rule of this host prohibits them",)),
    ],
    ids=["no route", "prohibited"],
)
def test_the_near_end_names_why_its_kernel_refuses(break_it, mend_it, words, tunnel):
    tunnel.start()
    tunnel.there()
    tunnel.sites.left.ip(break_it)
    try:
        tunnel.there()
        says(tunnel.why_out, "port_refused", *words)
        says(tunnel.drops, words[0])
    finally:
        tunnel.sites.left.ip(mend_it)


def test_the_near_end_names_chains_that_drop_by_their_policy(tunnel):
    """As Docker's: what none of its rules accepts is dropped. One without rules drops all."""
    tunnel.start()
    left = tunnel.sites.left
    left.run("nft", 'table ip fault { chain FORWARD { type filter hook forward priority 0; policy drop; iifname "docker0" accept; }; }')
    try:
        chain = "table ip fault, chain FORWARD (hook forward, policy drop)"
        said = tunnel.why_out()
        assert f"warn own filter {chain}: the packet may be dropped" in said, said
        assert 'nft insert rule ip fault FORWARD oifname "uxfrm0" accept' in said, said
        said = tunnel.why_in()
        assert chain in said and 'nft insert rule ip fault FORWARD iifname "uxfrm0" accept' in said, said
        left.run("nft", "flush chain ip fault FORWARD")
        tunnel.there()
        said = tunnel.why_out()
        assert f"fail own filter {chain}, has no rules: the packet is dropped" in said, said
        assert "does not get through (own filter)" in said, said
        assert tunnel.status()["tunnels"][0]["sent"]["packets"] == 0
        assert chain in tunnel.asked("doctor")
        for way in ("iifname", "oifname"):
            left.run("nft", f'insert rule ip fault FORWARD {way} "uxfrm0" accept')
        tunnel.there()
        says(tunnel.why_out, f"sent {DATAGRAMS} packets")
        for said in (tunnel.why_out(), tunnel.why_in()):
            assert "may be dropped" not in said, said
        assert 'its rule `iifname "uxfrm0" accept` lets the packet pass' in said, said
        assert "lets what is forwarded from and to tunnels pass" in tunnel.asked("doctor")
    finally:
        left.run("nft", "delete table ip fault")
    said = tunnel.why_in()
    assert "no chain at hook input or forward has policy drop" in said, said


def test_the_near_end_names_numbers_from_before_its_restart(tunnel):
    """The peer begins its numbers anew with an old key, and this end has been restarted."""
    tunnel.start()
    tunnel.back()
    says(tunnel.why_out, f"received {DATAGRAMS} by")
    tunnel.near.stop()
    tunnel.near.launch()
    forget_numbers(tunnel.far)
    tunnel.back()
    says(tunnel.why_out, "warn path", SPIS["back"][2:], "in_before_restart", "cause:")


def test_the_near_end_names_its_own_lost_numbers(tunnel):
    """The peer takes its packets for replays until they are above its window."""
    tunnel.start()
    tunnel.there()
    forget_numbers(tunnel.near)
    tunnel.there()
    says(tunnel.status_text, "notice", "sequence numbers")


def test_nothing_is_wrong(tunnel):
    """The counter-test: a tunnel that works raises no suspicion."""
    tunnel.start()
    tunnel.there()
    tunnel.back()
    said = says(tunnel.why_out, "leaves in ESP, 10.9.0.1 -> 10.8.0.2", "by wire0")
    assert "  fail " not in said and "  warn " not in said, said
    said = tunnel.why_in()
    assert "comes in" in said and "  fail " not in said, said
    status = patience.wait_for(lambda: (found := tunnel.status()) and found["totals"]["up"] == 1 and found, tunnel.status_text)
    assert status["tunnels"][0]["health"] == "up"
    assert tunnel.reasons() == {}
