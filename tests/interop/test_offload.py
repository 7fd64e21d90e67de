"""Offload devices in a running gateway: `[[device]]` and `uxfrm dev`, both kinds, with a real Linux
kernel and with uxfrm at the other end.

For the picture of the networks see topology.UxfrmAndLinux, topology.TwoGateways.
"""

import contextlib
import dataclasses
import json
import socket
import subprocess
import threading

import pytest

import echo
import listener
import patience
import topology
import wire
from association import GCM_128, GCM_256, Association
from device_socket import DeviceSocket, batch
from gateway import CONTROLLED, Gateway
from namespace import UNANSWERED_SECONDS, ping_command, received
from probes import Probes
from topology import HERE, THERE

TCP_BYTES = 256 * 1024
DEVICE = """
[[device]]
name = "nic0"
profile = "{profile}"
"""
PACKET, CRYPTO = "packet", "crypto"
IN_UDP = "encap espinudp 4500 4500 0.0.0.0"
WINDOW = "replay-window 64"
CASES = [
    (PACKET, "connectx6dx", Association(GCM_128, "tunnel", 4, 4, WINDOW, reqid=7)),
    (PACKET, "connectx6dx", Association(GCM_256, "transport", 6, 6, f"{WINDOW} flag esn", reqid=7)),
    (PACKET, "connectx6dx", Association(GCM_128, "transport", 4, 4, f"{WINDOW} {IN_UDP}", reqid=7)),
    (PACKET, "unlimited", Association(GCM_128, "tunnel", 6, 4, WINDOW, reqid=7)),
    (CRYPTO, "connectx6dx", Association(GCM_256, "tunnel", 6, 6, f"{WINDOW} flag esn", reqid=7)),
    (CRYPTO, "niantic", Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)),
    (CRYPTO, "unlimited", Association(GCM_128, "tunnel", 4, 4, f"{WINDOW} {IN_UDP}", reqid=7)),
]
EXIT_REFUSED = 2
TUN = "uxfrm0 is the TUN that uxfrm makes ([host] tun); name another device"


def name_of(case):
    kind, profile, association = case
    return f"{kind}-{profile}-{association}-{'udp' if 'encap' in association.extra else 'esp'}"


def offloaded(kind, association, here, there, device="nic0"):
    """The lines of one end, on a device."""
    ends = [(here, "out"), (there, "in")]
    states = [
        f"{line} offload {kind} dev {device} dir {way}"
        for line, (_, way) in zip(association.states(here, there), ends, strict=True)
    ]
    policies = association.policies(here, there)
    if kind == PACKET:
        policies = [line.replace(" tmpl ", f" offload packet dev {device} tmpl ", 1) for line in policies]
    return states + policies


def client(binary, namespace, what, words, options="", check=True):
    """`uxfrm dev` or `uxfrm xfrm`: exit code and all that was printed."""
    command = ["ip", "netns", "exec", namespace.name, binary, what, *options.split(), *words.split()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    assert not check or done.returncode == 0, f"{words}: {done.stdout}"
    return done.returncode, done.stdout


def device(binary, namespace, name="nic0", part=""):
    [found] = json.loads(client(binary, namespace, "dev", f"show {name} {part}", "-j")[1])
    return found


def assert_accounts(found):
    """In = out + named drops, both ways."""
    for way in ("tx", "rx"):
        counts = found[way]
        assert counts["received"] == counts["passed"] + counts["dropped"] + counts["held"], found
    assert sum(found["drops"].values()) == found["tx"]["dropped"] + found["rx"]["dropped"], found


@pytest.fixture
def gateway(uxfrm, linux_network):
    made = Gateway(uxfrm, linux_network.here)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_linux_cannot_tell(case, uxfrm, gateway, linux_network):
    kind, profile, association = case
    gateway.start(offloaded(kind, association, HERE, THERE), more=DEVICE.format(profile=profile))
    linux_network.linux.xfrm(association.lines(THERE, HERE))
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    linux_network.between.seen()
    try:
        linux_network.here.ping(here, there)
        linux_network.linux.run(ping_command(there, here, echo.MARKER))
        with linux_network.here.entered():
            echo.transfer(here, there, TCP_BYTES)
        linux_network.linux.transfer(there, here, TCP_BYTES)
        in_udp = "encap" in association.extra
        wire.assert_only("esp-in-udp" if in_udp else "esp", linux_network.between.seen())
        found = device(uxfrm, linux_network.here, part="states")
        assert_accounts(found)
        packets = [state["packets"] for state in found["states"]]
        if kind == CRYPTO and in_udp:
            assert packets[0] == 0 < packets[1], "as in Linux, ESP in UDP is encrypted in software"
        else:
            assert len(packets) == 2 and min(packets) > 2 * TCP_BYTES / 65536, found
    except Exception as failure:
        shown = client(uxfrm, linux_network.here, "dev", "show nic0 states", check=False)[1]
        failure.add_note(f"Linux counted {linux_network.linux.statistics()}\n{gateway.statistics()}\n{shown}\n{gateway.log()}")
        raise
    gateway.stop()


@pytest.fixture
def two(uxfrm):
    """Two gateways without devices."""
    with topology.TwoGateways("wire0") as network:
        network.ends = ((network.left, HERE, THERE), (network.right, THERE, HERE))
        for namespace, side, _ in network.ends:
            topology.place(namespace, "wire0", side)
        network.gateways = [Gateway(uxfrm, namespace, workers=2) for namespace, _, _ in network.ends]
        for gateway in network.gateways:
            network.callback(gateway.close)
            gateway.start(more=CONTROLLED)
        yield network


def install(uxfrm, namespace, lines):
    for line in lines:
        client(uxfrm, namespace, "xfrm", line.removeprefix("xfrm "))


def both_ways(two, association):
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for namespace, source, destination in ((two.left, here, there), (two.right, there, here)):
        namespace.ping(source, destination)
        with namespace.entered():
            echo.transfer(source, destination, TCP_BYTES)


@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_devices_come_and_go_while_it_runs(kind, uxfrm, two):
    """`uxfrm dev add` on both ends, states of both families on two devices each, names as the
    user gave them."""
    associations = {
        "nic0": Association(GCM_128, "tunnel", 4, 4, f"{WINDOW} flag esn", reqid=7),
        "nic1": Association(GCM_256, "transport", 6, 6, WINDOW, reqid=9, generation=1),
    }
    for namespace, here, there in two.ends:
        for name, association in associations.items():
            client(uxfrm, namespace, "dev", f"add {name} over wire0 profile connectx6dx")
            install(uxfrm, namespace, offloaded(kind, association, here, there, name))
    two.between.seen()
    for association in associations.values():
        both_ways(two, association)
    wire.assert_only("esp", two.between.seen())
    for namespace, _, _ in two.ends:
        shown = client(uxfrm, namespace, "xfrm", "state")[1]
        for name in associations:
            found = device(uxfrm, namespace, name, "states")
            assert_accounts(found)
            assert [state["kind"] for state in found["states"]] == [kind] * 2
            assert min(state["packets"] for state in found["states"]) > 2 * TCP_BYTES / 65536, found
            assert sum(found["queues"]) == found["rx"]["passed"] > 0
            for way in ("in", "out"):
                assert f"crypto offload parameters: dev {name} dir {way} mode {kind}\n" in shown
        client(uxfrm, namespace, "dev", "del nic1")
        assert "nic1" not in client(uxfrm, namespace, "xfrm", "state")[1]
        assert "nic1" not in namespace.ip("link")
    both_ways(two, associations["nic0"])
    for gateway in two.gateways:
        gateway.stop()


def test_unmodified_ip_finds_a_device_by_its_name(uxfrm, two):
    """Debian's iproute2 6.1 knows `offload dev`, which is kind crypto."""
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    for (namespace, here, there), gateway in zip(two.ends, two.gateways, strict=True):
        client(uxfrm, namespace, "dev", "add nic0 profile niantic")
        for line in offloaded(CRYPTO, association, here, there):
            quoted = line.replace("offload crypto", "offload").replace("'", "")
            gateway.ip(quoted)
        shown = gateway.ip("xfrm state")
        assert "crypto offload parameters: dev nic0 dir in" in shown
        assert "crypto offload parameters: dev nic0 dir out" in shown
    both_ways(two, association)
    assert device(uxfrm, two.left)["tx"]["passed"] > 0


def test_a_full_niantic_says_so_and_the_others_go_on(uxfrm, two):
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    for namespace, here, there in two.ends:
        client(uxfrm, namespace, "dev", "add nic0 profile niantic")
        install(uxfrm, namespace, offloaded(CRYPTO, association, here, there))
    state = (
        f"state add src 10.77.0.1 dst {HERE.outer[4]} proto esp spi %#x mode transport"
        f" {GCM_128.words(bytes(128))} offload crypto dev nic0 dir in"
    )
    batch = two.gateways[0].directory / "many.batch"
    batch.write_text("".join(f"xfrm {state % spi}\n" for spi in range(0x10000, 0x10000 + 1023)))
    lost = []
    with pinging(two, association, lost):
        client(uxfrm, two.left, "xfrm", "", f"-batch {batch}")
        found = device(uxfrm, two.left, part="states")
        assert found["tables"]["receive"] == {"used": 1024, "size": 1024}
        assert len(found["states"]) == 1025
        code, text = client(uxfrm, two.left, "xfrm", state % 7, check=False)
        assert (code, text) == (EXIT_REFUSED, "Error: No space for SA in Rx table!.\n")
        client(uxfrm, two.left, "xfrm", f"state delete src 10.77.0.1 dst {HERE.outer[4]} proto esp spi 0x10005")
        client(uxfrm, two.left, "xfrm", state % 7)
    assert not lost, lost
    both_ways(two, association)


@contextlib.contextmanager
def pinging(two, association, lost):
    """Pings all the while; what goes wrong is in `lost`."""
    over = threading.Event()

    def ping():
        while not over.is_set():
            try:
                two.left.ping(association.endpoints(HERE), association.endpoints(THERE), count=5)
            except Exception as failure:  # noqa: BLE001, told by the test
                lost.append(str(failure))

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_a_thousand_flaps_under_load_leak_nothing(kind, uxfrm, two):
    """The link goes down and comes up under load, states and policies are installed again; only ESP
    is on the wire, and all is accounted for.

    Pings come whenever they come; a datagram before and one after each flap make the load the
    same on a fast and on a slow machine.
    """
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    lines = [(namespace, offloaded(kind, association, here, there)) for namespace, here, there in two.ends]
    for namespace, its in lines:
        client(uxfrm, namespace, "dev", "add nic0")
        install(uxfrm, namespace, its)
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    again = [line.replace("policy add", "policy update") for line in lines[0][1]]
    two.between.seen()
    pings = subprocess.Popen(
        ["ip", "netns", "exec", two.left.name, *ping_words(here, there)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with (
        contextlib.closing(DeviceSocket(two.left)) as devices,
        batch(uxfrm, two.left) as xfrm,
        datagrams(two.left, here, there) as send,
    ):
        try:
            for _ in range(1000):
                send()
                devices.flap("nic0")
                send()
                xfrm(again if kind == PACKET else again[:2])
                devices.wait_for_states("nic0", 2)
        finally:
            pings.terminate()
            pings.wait()
    two.left.ping(here, there)
    frames = two.between.seen()
    wire.assert_only("esp", frames)
    assert len(frames) > 200
    found = device(uxfrm, two.left)
    assert_accounts(found)
    assert found["tx"]["passed"] > 100, found


def test_a_rekey_by_a_limit_on_the_device_loses_nothing(uxfrm, two):
    """Who listens for EXPIRE does what an IKE daemon would; behind the hard limit the device
    drops. (strongSwan knows `packet` from 5.9.11 on.)"""
    limits = "limit packet-soft {} limit packet-hard {}"
    old = Association(GCM_128, "tunnel", 4, 4, f"{WINDOW} {limits.format(60, 10_000)}", reqid=7)
    new = dataclasses.replace(old, generation=1, extra=f"{WINDOW} {limits.format(400, 500)}")
    for namespace, here, there in two.ends:
        client(uxfrm, namespace, "dev", "add nic0 profile connectx6dx")
        install(uxfrm, namespace, offloaded(PACKET, old, here, there))
    here, there = old.endpoints(HERE), old.endpoints(THERE)
    two.between.seen()
    with expiries(uxfrm, two.left) as heard:
        probes = Probes(two.left, here, there)
        assert heard() == "soft"
        for namespace, source, destination in two.ends:
            lines = offloaded(PACKET, new, source, destination)
            changed = [line.replace("policy add", "policy update") for line in lines]
            install(uxfrm, namespace, [changed[1], *changed[2:]])
        for namespace, source, destination in two.ends:
            install(uxfrm, namespace, offloaded(PACKET, new, source, destination)[:1])
            gone = f"state delete src {source.outer[4]} dst {destination.outer[4]} proto esp spi {old.spi_of(destination)}"
            client(uxfrm, namespace, "xfrm", gone)
        probes.wait_for(50)
        lost = probes.lost()
        assert probes.sent > 50 and not lost, f"{len(lost)} of {probes.sent} unanswered: {lost[:10]}"
        states = device(uxfrm, two.left, part="states")["states"]
        assert any(state["spi"] == THERE.spi + 1 and state["packets"] > 0 for state in states), states
        with pytest.raises(RuntimeError):
            two.left.run("ping", "-q", "-f", "-c", "2000", "-w", "5", "-I", here, there)
            two.left.ping(here, there, count=1, seconds=UNANSWERED_SECONDS)
        while heard() != "hard":
            pass
    frames = two.between.seen()
    wire.assert_only("esp", frames)
    sent = sum(frame[34:38] == (THERE.spi + 1).to_bytes(4, "big") for outgoing, frame in frames if outgoing)
    assert sent <= 500, sent
    assert_accounts(device(uxfrm, two.left))


@contextlib.contextmanager
def expiries(uxfrm, namespace):
    """A function that waits for the next EXPIRE of `uxfrm xfrm monitor` and says whether it is a
    soft or a hard one."""
    command = ["timeout", str(patience.SECONDS), uxfrm, "xfrm", "monitor", "expire"]
    with listener.of_gateway(namespace, uxfrm, *command, stdout=subprocess.PIPE, text=True) as monitor:

        def next_expiry():
            for line in monitor.stdout:
                if line.strip() in ("hard 0", "hard 1"):
                    return "hard" if "1" in line else "soft"
            raise AssertionError("no EXPIRE came")

        yield next_expiry


@contextlib.contextmanager
def datagrams(namespace, source, destination):
    """A function that sends a marked datagram; that an answer or an error comes back is nothing
    to it."""
    with namespace.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((source, 0))

    def send():
        with contextlib.suppress(OSError):
            sender.sendto(echo.MARKER, (destination, echo.PORT))

    with sender:
        yield send


def ping_words(source, destination):
    return ["ping", "-q", "-i", "0.002", "-I", source, "-p", echo.MARKER.hex()[:32], destination]


def test_completions_that_come_late_are_only_late(uxfrm, two, installed):
    here, there = installed(PACKET)
    client(uxfrm, two.left, "dev", "set nic0 fault delay 30000")
    fastest = lambda: fastest_of_five(two.left, here, there)  # noqa: E731
    assert fastest() >= 60, "one wait on the way out and one on the way in"
    client(uxfrm, two.left, "dev", "set nic0 fault delay 0")
    patience.wait_for(lambda: fastest() < 30, "they still come late")
    assert_accounts(device(uxfrm, two.left))


def fastest_of_five(namespace, source, destination):
    """Milliseconds that the fastest of five pings took that were answered, or more."""
    answer = namespace.run(*f"ping -c 5 -i 0.05 -w {patience.SECONDS} -I".split(), source, destination)
    assert received(answer) >= 5, answer
    return float(answer.rsplit("= ", 1)[1].split("/")[0])


def test_packets_that_change_places_all_arrive(uxfrm, two, installed):
    here, there = installed(PACKET)
    two.between.seen()
    client(uxfrm, two.left, "dev", "set nic0 fault reorder 3")
    answer = two.left.run(*f"ping -c 20 -i 0.01 -w {patience.SECONDS} -I".split(), here, there)
    assert received(answer) >= 20, "the window takes them"
    esp = [frame for outgoing, frame in two.between.seen() if outgoing and wire.protocol(frame) == "esp"]
    sent = [int.from_bytes(frame[38:42], "big") for frame in esp]
    assert sent != sorted(sent) and sorted(sent) == list(range(min(sent), max(sent) + 1)), sent
    assert "rx_too_old" not in device(uxfrm, two.right)["drops"]
    assert_accounts(device(uxfrm, two.left))


def test_a_limit_is_noticed_though_the_device_did_not_tell(uxfrm, two, installed):
    """The counts are held against the limits once a second."""
    here, there = installed(PACKET, f"{WINDOW} limit packet-soft 20 limit packet-hard 1000")
    with expiries(uxfrm, two.left) as heard:
        # Both states' limits.
        client(uxfrm, two.left, "dev", "set nic0 fault lost-event 2")
        two.left.ping(here, there, count=20)
        assert heard() == "soft"


def test_a_busy_device_says_so_once(uxfrm, two, installed):
    here, there = installed(PACKET)
    more = f"state add src 10.77.0.1 dst 10.77.0.2 proto esp spi 9 reqid 3 mode transport {GCM_128.words(bytes(128))}"
    for kind, busy in ((PACKET, True), (CRYPTO, False)):
        client(uxfrm, two.left, "dev", "set nic0 fault busy 1")
        code, text = client(uxfrm, two.left, "xfrm", f"{more} offload {kind} dev nic0 dir out", check=False)
        expected = (EXIT_REFUSED, "Error: Device failed to offload this state.\n") if busy else (0, "")
        assert (code, text) == expected, kind
    two.left.ping(here, there)


@pytest.fixture
def installed(uxfrm, two):
    """A function that gives both ends a device, states and policies; and who can talk then."""

    def install_both(kind, extra=WINDOW):
        association = Association(GCM_128, "transport", 4, 4, extra, reqid=7)
        for namespace, here, there in two.ends:
            client(uxfrm, namespace, "dev", "add nic0")
            install(uxfrm, namespace, offloaded(kind, association, here, there))
        ends = association.endpoints(HERE), association.endpoints(THERE)
        two.left.ping(*ends)
        return ends

    return install_both


def test_rules_events_faults_and_functions(uxfrm, two):
    """The words of `uxfrm dev` one after the other."""
    run = lambda words, options="", check=True: client(uxfrm, two.left, "dev", words, options, check)  # noqa: E731
    association = Association(GCM_128, "transport", 4, 4, WINDOW, reqid=7)
    for namespace, here, there in two.ends:
        client(uxfrm, namespace, "dev", "add nic0 profile niantic vfs 2")
        install(uxfrm, namespace, offloaded(CRYPTO, association, here, there))
    spi = association.spi_of(HERE)
    assert run(f"flow nic0 -U flow-type esp4 spi {spi} action 3")[1] == "Added rule with ID 2047\n"
    before = device(uxfrm, two.left)["queues"]
    two.left.ping(association.endpoints(HERE), association.endpoints(THERE))
    after = device(uxfrm, two.left)["queues"]
    assert [now - then for then, now in zip(before, after, strict=True)] == [3 if queue == 3 else 0 for queue in range(16)]
    run("flow nic0 -U delete 2047")
    run(f"flow nic0 -U flow-type ip4 src-ip {THERE.outer[4]} action -1")
    with pytest.raises(RuntimeError):
        two.left.ping(association.endpoints(HERE), association.endpoints(THERE), count=1, seconds=UNANSWERED_SECONDS)
    assert device(uxfrm, two.left)["drops"] == {"rx_flow_rule": 1}
    run("flow nic0 -U delete 2047")
    run("set nic0 fault wrong-decryption 1")
    with pytest.raises(RuntimeError):
        two.left.ping(association.endpoints(HERE), association.endpoints(THERE), count=1, seconds=UNANSWERED_SECONDS)
    assert "XfrmInStateProtoError" in two.gateways[0].statistics()
    state = f"state add src 10.77.0.1 dst 10.77.0.2 proto esp spi 9 mode transport {GCM_128.words(bytes(128))}"
    guest = f"{state} offload crypto dev nic0v1 dir in"
    code, text = client(uxfrm, two.left, "xfrm", guest, check=False)
    assert (code, text) == (EXIT_REFUSED, "Error: Device failed to offload this state.\n")
    run("set nic0 vf 1 trust on fault full-table 1")
    assert "No space for SA in Rx table!" in client(uxfrm, two.left, "xfrm", guest, check=False)[1]
    client(uxfrm, two.left, "xfrm", guest)
    [first, second] = device(uxfrm, two.left)["functions"]
    assert (first["trusted"], second["trusted"], second["receive"]["used"]) == (False, True, 1)
    assert "spi=0x00000009" in run("show nic0 debugfs")[1]
    with listener.of_gateway(two.left, uxfrm, uxfrm, *"dev -j events nic0".split(), stdout=subprocess.PIPE, text=True) as events:
        run("set nic0 down")
        assert json.loads(events.stdout.readline())["event"] == "link-down"
        run("del nic0")
        assert json.loads(events.stdout.readline())["event"] == "deleted"
    for words, text in (
        ("del nic0", "Error: there is no device nic0: uxfrm dev add nic0."),
        ("add nic0 over none0", "Error: there is no interface none0 to be over."),
        ("add uxfrm0", f"Error: {TUN}."),
        ("add nic0 over uxfrm0", f"Error: {TUN}."),
    ):
        assert run(words, check=False) == (EXIT_REFUSED, f"{text}\n")
