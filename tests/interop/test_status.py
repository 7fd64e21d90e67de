"""`uxfrm status` says of each tunnel whether it is up, and why not; who may ask, and that asking
holds up nobody."""

import json
import socket
import subprocess
import threading
import time

import pytest

import listener
import patience
import test_offload
import topology
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32")
NOBODY, READERS = 65534, 64999
NAME = "\0uxfrm/stat"


@pytest.fixture
def pair(uxfrm, network):
    gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
    yield gateways
    for gateway in gateways:
        gateway.close()


def run(gateway, *words, before=()):
    """`uxfrm status`: exit code and text."""
    command = ["ip", "netns", "exec", gateway.namespace.name, *before, str(gateway._binary), "status", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * patience.SECONDS)
    return done.returncode, done.stdout + done.stderr


def document(gateway, *words):
    """Exit code and document."""
    code, text = run(gateway, "-j", *words)
    return code, json.loads(text)


def only(gateway):
    """Exit code and the one tunnel that there is."""
    code, told = document(gateway)
    assert len(told["tunnels"]) == 1, told
    return code, told["tunnels"][0]


def test_a_tunnel_is_idle_and_then_up(network, pair):
    left, right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    code, tunnel = only(left)
    assert (code, tunnel["health"], tunnel["reason"]) == (0, "idle", {"kind": "quiet", "seconds": None})
    network.left.ping(HERE.inner[4], THERE.inner[4], count=3)
    code, told = document(left)
    tunnel = told["tunnels"][0]
    assert (code, tunnel["health"]) == (0, "up") and "reason" not in tunnel
    assert (tunnel["sent"]["packets"], tunnel["received"]["packets"]) == (3, 3)
    assert (tunnel["local"], tunnel["remote"], tunnel["mode"], tunnel["reqid"]) == (HERE.outer[4], THERE.outer[4], "tunnel", 1)
    assert tunnel["nets"] == [{"local": "10.1.0.1/32", "remote": "10.2.0.1/32"}]
    assert tunnel["cipher"] == "rfc4106(gcm(aes)) 128"
    assert {state["spi"] for state in tunnel["states"]} == {"0x00001000", "0x00002000"}
    gateway = told["gateway"]
    assert (gateway["pid"], gateway["mode"], gateway["workers"]) == (left.pid, "host", 1)
    assert gateway["configuration"] == str(left.directory / "config.toml")
    code, text = run(left)
    lines = text.splitlines()
    assert code == 0 and lines[0].startswith("uxfrm ") and "1 tunnel: 1 up; 2 states, 2 policies" in lines[2], text
    assert lines[4].startswith(f"{HERE.outer[4]} <-> {THERE.outer[4]}  10.1.0.1/32 <-> 10.2.0.1/32  tunnel reqid 1"), text
    assert lines[5].startswith("  up: received 3 packets") and "\x1b" not in text
    assert "states in 0x00001000, out 0x00002000, never expires" in lines[6]
    assert all(secret not in text for secret in ("0x1c0c", PROTECTED.secret_towards(THERE).hex()[:16]))
    for peer, count in ((THERE.outer[4], 1), ("10.9.0.0/24", 1), (THERE.inner[4], 1)):
        assert document(left, peer)[1]["totals"]["tunnels"] == count, peer
    code, text = run(left, "203.0.113.7")
    assert code == 1 and "no tunnel with 203.0.113.7" in text
    code, text = run(left, "nonsense")
    assert code == 2 and "neither an IP address nor a prefix" in text


def test_a_tunnel_without_state_is_down(network, pair):
    left, _ = pair
    outbound = f"xfrm policy add src 10.1.0.0/16 dst 10.7.0.0/16 dir out tmpl src {HERE.outer[4]} dst 10.9.0.7 proto esp reqid 9 mode tunnel"
    bypass = "xfrm policy add src 10.1.0.0/16 dst 10.8.0.0/16 dir out"
    left.start([*PROTECTED.lines(HERE, THERE), outbound, bypass], more=CONTROLLED)
    code, told = document(left)
    assert code == 1 and [tunnel["health"] for tunnel in told["tunnels"]] == ["down", "idle"], told
    assert told["tunnels"][0]["reason"] == {"kind": "no-state"} and told["plain"]["bypass"] == 1
    code, text = run(left)
    assert code == 1 and "down (no state fits the template, and no key manager listens to make one; only out: " in text
    assert run(left, THERE.outer[4])[0] == 0, "what is asked for is well"
    # The other reqid: said of both, the policy and the state.
    left.ip("xfrm state delete src {} dst {} proto esp spi 0x2000".format(HERE.outer[4], THERE.outer[4]))
    left.ip(f"xfrm state add src {HERE.outer[4]} dst {THERE.outer[4]} proto esp spi 0x2001 reqid 2 mode tunnel aead rfc4106(gcm(aes)) 0x{'11' * 20} 128")
    code, told = document(left)
    assert [tunnel["health"] for tunnel in told["tunnels"]] == ["down", "down"]
    assert [state["spi"] for state in told["unmatched_states"]] == ["0x00002001"]
    assert "1 state fits no policy\n  0x00002001" in run(left)[1]


def test_a_key_manager_that_is_asked_is_said(network, pair):
    left, _ = pair
    left.start(PROTECTED.policies(HERE, THERE), more=CONTROLLED)
    assert only(left)[1]["reason"] == {"kind": "no-state"}
    monitor = [str(left._binary), "xfrm", "monitor", "acquire"]
    with listener.of_gateway(network.left, left._binary, *monitor, stdout=subprocess.DEVNULL):
        code, tunnel = only(left)
        assert (code, tunnel["health"], tunnel["reason"]) == (0, "idle", {"kind": "waits-for-packet"})
        with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((HERE.inner[4], 0))
            sender.sendto(b"?", (THERE.inner[4], 9))
        patience.wait_for(lambda: only(left)[1]["reason"] == {"kind": "acquire-pending"})
        assert only(left)[0] == 1


def test_an_expired_state_is_named(network, pair):
    left, _ = pair
    states = PROTECTED.states(HERE, THERE)
    left.start([f"{states[0]} limit time-hard 2", states[1], *PROTECTED.policies(HERE, THERE)], more=CONTROLLED)
    assert "expiry" in only(left)[1] or only(left)[0] == 1
    patience.wait_for(lambda: only(left)[0] == 1)
    tunnel = only(left)[1]
    assert tunnel["reason"]["kind"] == "expired" and tunnel["reason"]["spi"] == "0x00002000"
    assert "state 0x00002000 expired" in run(left)[1]


def test_what_is_sent_and_never_answered_is_one_way(network, pair):
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    with network.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HERE.inner[4], 0))

        def is_one_way():
            sender.sendto(b"?", (THERE.inner[4], 9))
            time.sleep(0.5)
            return only(left)[1]["health"] == "one-way"

        patience.wait_for(is_one_way, "nobody answers", 3 * patience.SECONDS)
    code, tunnel = only(left)
    reason = tunnel["reason"]
    assert (code, reason["kind"], reason["received"]) == (1, "nothing-received", 0) and reason["sent"] > 0 and reason["seconds"] >= 30
    assert "and received none in" in run(left)[1]


def test_transport_ipv6_and_udp(network, pair):
    left, right = pair
    natted = Association(GCM_128, "tunnel", 6, 4, extra="encap espinudp 4500 4500 0.0.0.0", reqid=2, generation=1)
    hosts = Association(GCM_128, "transport", 6, 6, reqid=3, generation=2)
    network.left.ip(f"-6 route add {THERE.inner[6]}/128 via {THERE.outer[6]} src {HERE.inner[6]}")
    network.right.ip(f"-6 route add {HERE.inner[6]}/128 via {HERE.outer[6]} src {THERE.inner[6]}")
    left.start([*natted.lines(HERE, THERE), *hosts.lines(HERE, THERE)], more=CONTROLLED)
    right.start([*natted.lines(THERE, HERE), *hosts.lines(THERE, HERE)], more=CONTROLLED)
    network.left.ping(HERE.inner[6], THERE.inner[6])
    network.left.ping(HERE.outer[6], THERE.outer[6])
    code, told = document(left)
    tunnels = {tunnel["reqid"]: tunnel for tunnel in told["tunnels"]}
    assert code == 0 and {tunnel["health"] for tunnel in tunnels.values()} == {"up"}, told
    assert (tunnels[2]["mode"], tunnels[2]["remote"]) == ("tunnel", THERE.outer[4])
    assert tunnels[2]["encapsulation"] == {"kind": "espinudp", "source_port": 4500, "destination_port": 4500}
    assert (tunnels[3]["mode"], tunnels[3]["remote"]) == ("transport", THERE.outer[6])
    assert told["unmatched_states"] == []
    assert ", UDP 4500" in run(left)[1]


@pytest.mark.parametrize("kind", [test_offload.CRYPTO, test_offload.PACKET])
def test_what_a_device_carries_is_counted(network, pair, kind):
    left, right = pair
    states = test_offload.offloaded(kind, PROTECTED, HERE, THERE)
    left.start(states, more=CONTROLLED + test_offload.DEVICE.format(profile="unlimited"))
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    network.left.ping(HERE.inner[4], THERE.inner[4], count=4)
    code, told = document(left)
    [tunnel] = told["tunnels"]
    assert (code, tunnel["health"], tunnel["device"], told["gateway"]["devices"]) == (0, "up", "nic0", ["nic0"]), told
    assert (tunnel["sent"]["packets"], tunnel["received"]["packets"], tunnel["states_total"]) == (4, 4, 2)
    assert ", offload nic0" in run(left)[1]


ASKING = ["status", "top --once", "stat", "drops", "why 10.1.0.1 10.2.0.1", "capture", "trace", "probe 10.2.0.1"]
CHANGING = ["reload", "release", "upgrade"]


def test_without_a_gateway_the_exit_code_of_all_commands_is_2(uxfrm):
    with topology.Hosts() as hosts:
        namespace = hosts.namespace("empty")
        inside = ["ip", "netns", "exec", namespace.name, str(uxfrm)]
        entered = [[str(uxfrm), *line.split(), "-n", namespace.name] for line in ASKING]
        for command in [*([*inside, *line.split()] for line in ASKING + CHANGING), *entered]:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience.SECONDS)
            assert done.returncode == 2 and done.stdout == "", (command, done)
            assert "no uxfrm runs in this network namespace" in done.stderr, (command, done)


def test_a_namespace_is_asked_by_its_name(pair):
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    for words in (["status"], ["why", HERE.inner[4], THERE.inner[4]], ["drops"], ["stat"]):
        outside = subprocess.run([left._binary, *words, "-n", left.namespace.name], capture_output=True, text=True)
        command = ["ip", "netns", "exec", left.namespace.name, left._binary, *words]
        inside = subprocess.run(command, capture_output=True, text=True)
        assert outside.returncode == inside.returncode == 0, (outside, inside)
        assert outside.stdout.splitlines()[2:] == inside.stdout.splitlines()[2:], words
    done = subprocess.run([left._binary, "status", "--netns", "no-such"], capture_output=True, text=True)
    assert done.returncode == 2 and 'Cannot open network namespace "no-such"' in done.stderr


def test_a_tunnel_with_policies_of_one_way_says_so(pair):
    left, _ = pair
    lines = [line for line in PROTECTED.lines(HERE, THERE) if " dir in" not in line and " dir fwd" not in line]
    left.start(lines, more=CONTROLLED)
    assert "only out: no policy dir in or fwd takes what comes back" in run(left)[1]


def as_user(*words):
    return ["setpriv", "--reuid", str(NOBODY), "--inh-caps=-all", "--bounding-set=-all", *words]


def test_a_group_may_ask_and_do_no_more(network, pair, tmp_path_factory):
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED + f"\n[status]\ngroup = {READERS}\n")
    own = as_user("--regid", str(READERS), "--clear-groups")
    among = as_user("--regid", str(NOBODY), "--groups", f"4,{READERS}")
    other = as_user("--regid", str(NOBODY), "--clear-groups")
    for before in (own, among):
        code, text = run(left, before=before)
        assert code == 0 and "1 tunnel: 1 idle" in text, text
        command = ["ip", "netns", "exec", network.left.name, *before, str(left._binary)]
        assert "XfrmInError" in subprocess.run([*command, "stat"], capture_output=True, text=True).stdout
        for words in (["xfrm", "state"], ["reload"], ["upgrade"], ["link", "show"]):
            done = subprocess.run([*command, *words], capture_output=True, text=True)
            assert done.returncode != 0 and "answers only root and the user" in done.stdout + done.stderr, (words, done)
    code, text = run(left, before=other)
    assert code == 2 and "the members of `[status] group`" in text, text
    left.stop()
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    assert run(left, before=own)[0] == 2, "nobody else without that line"
    assert run(left)[0] == 0


def test_a_group_by_name_outlives_a_reload(network, pair):
    """A gateway that is confined can't look for the group again."""
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED + "\n[status]\ngroup = 'adm'\n")
    told = left.namespace.run(str(left._binary), "reload", "--dry-run")
    assert told == "nothing is different\n", told


def test_a_group_that_is_not_there_is_an_error_of_the_configuration(network, pair):
    left, _ = pair
    left.write([], more="\n[status]\ngroup = 'no-such-group'\n")
    told = network.left.run(str(left._binary), "check", str(left.directory / "config.toml"), check=False)
    assert 'there is no group "no-such-group" on this machine' in told


def test_the_socket_s_protocol(network, pair):
    """What another program would do: a line each way, as often as it likes."""
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    with network.left.entered(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(NAME)
        connection.settimeout(patience.SECONDS)
        lines = connection.makefile("rwb")

        def ask(line):
            lines.write(line + b"\n")
            lines.flush()
            return json.loads(lines.readline())

        assert ask(b'{"version":1,"ask":"counters"}')["kernel"]["XfrmInError"] == 0
        refusal = ask(b"GET / HTTP/1.0")
        assert refusal["answer"] == "refusal" and refusal["versions"] == [1] and "status" in refusal["requests"]
        assert ask(b'{"version":1,"ask":"status","limit":1}')["answer"] == "status"


def test_status_is_answered_across_upgrades(network, pair):
    """No question goes without an answer while one process takes another's place."""
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    codes, ends = [], threading.Event()

    def asks():
        while not ends.is_set():
            codes.append(run(left))

    askers = [threading.Thread(target=asks) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        pids = [left.pid]
        for _ in range(5):
            left.upgrade()
            pids.append(left.pid)
    finally:
        ends.set()
        for asker in askers:
            asker.join()
    assert len(set(pids)) == 6
    assert [text for code, text in codes if code != 0] == [] and len(codes) > 5
    assert document(left)[1]["gateway"]["pid"] == pids[-1]


PEERS = 100_000


@pytest.mark.alone
def test_a_hundred_thousand_tunnels_hold_up_no_request(uxfrm, capsys):
    """While `uxfrm status` looks through them, requests go on to be answered: some are, within
    each that is asked for. Times are printed, and none is asserted."""
    with topology.Hosts() as hosts:
        gateway = hosts.gateway(uxfrm, hosts.namespace("many"))
        lines = []
        for number in range(PEERS):
            peer = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            lines.append(f"xfrm state add src 10.9.0.1 dst {peer} proto esp spi {number + 256} reqid {number + 1} mode tunnel aead rfc4106(gcm(aes)) 0x{number + 1:040x} 128")
            lines.append(
                f"xfrm policy add src 10.1.0.1 dst 10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255} dir out"
                f" tmpl src 10.9.0.1 dst {peer} proto esp reqid {number + 1} mode tunnel")
        gateway.start(lines, guard="off", more=CONTROLLED)
        answered, ends = [], threading.Event()

        def asks():
            while not ends.is_set():
                gateway.ip("xfrm state count")
                answered.append(time.monotonic())

        asker = threading.Thread(target=asks)
        asker.start()
        try:
            seconds, between = [], []
            for _ in range(5):
                begun = time.monotonic()
                code, told = document(gateway)
                ended = time.monotonic()
                seconds.append(ended - begun)
                between.append(sum(begun <= at <= ended for at in answered))
        finally:
            ends.set()
            asker.join()
        assert code == 0 and told["totals"]["tunnels"] == told["totals"]["idle"] == PEERS
        assert len(told["tunnels"]) == 50
        begun = time.monotonic()
        code, told = document(gateway, "--all")
        everything = time.monotonic() - begun
        assert len({tunnel["remote"] for tunnel in told["tunnels"]}) == PEERS
        gaps = [later - before for before, later in zip(answered, answered[1:])]
        with capsys.disabled():
            print(f"\n{PEERS} tunnels: status {min(seconds):.2f} to {max(seconds):.2f} s, all of them as JSON {everything:.1f} s;"
                  f" {between} requests answered meanwhile, the slowest after {max(gaps):.2f} s")
        assert sum(between) >= 5, between
