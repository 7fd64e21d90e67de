"""`uxfrm capture` and `uxfrm trace`: what passes a gateway, for Wireshark and as lines; who may
look, and that it ends with who looks."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile

import pytest

import patience
import prerequisite
from association import CBC_SHA256, CHACHA20_POLY1305, CCMS, GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

NOBODY, READERS = 65534, 64999
IN_UDP = "encap espinudp 4500 4500 0.0.0.0"
ECHO_REQUEST, ECHO_REPLY = "8", "0"
UXFRM_OUT = "0x00002000"


def tunnel(transform=GCM_128, extra="", families=(4, 4)):
    return Association(transform, "tunnel", *families, extra=f"replay-window 32 {extra}".strip())


@pytest.fixture
def pair(uxfrm, network):  # noqa: F811
    gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
    yield gateways
    for gateway in gateways:
        gateway.close()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="uxfrm-capture-") as made:
        yield pathlib.Path(made)


def start(pair, protected, more=CONTROLLED):
    left, right = pair
    left.start(protected.lines(HERE, THERE), more=more)
    right.start(protected.lines(THERE, HERE), more=more)
    return left


def command(gateway, *words, before=()):
    return ["ip", "netns", "exec", gateway.namespace.name, *before, str(gateway._binary), *map(str, words)]


def run(gateway, *words, before=()):
    """Exit code, and all that was printed."""
    done = subprocess.run(command(gateway, *words, before=before), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * patience.SECONDS)
    return done.returncode, done.stdout


@contextlib.contextmanager
def running(gateway, *words, **more):
    with subprocess.Popen(command(gateway, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def capturing(gateway, file, *words):
    """`uxfrm capture -w FILE`: the file is there once packets are captured."""
    with running(gateway, "capture", "-w", file, *words) as process:
        patience.wait_for(lambda: file.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        yield process


def finish(process):
    """What it says on stderr, ended by itself or by Ctrl-C."""
    _, says = process.communicate(timeout=2 * patience.SECONDS)
    assert process.returncode == 0, says
    return says


def dissect(file, *fields, keys=None):
    """What tshark finds in a capture file, a dictionary a packet; with `keys` it decrypts."""
    prerequisite.programs(tshark="tshark")
    with tempfile.TemporaryDirectory(prefix="uxfrm-wireshark-") as configuration:
        options = []
        if keys is not None:
            (pathlib.Path(configuration) / "esp_sa").write_bytes(keys.read_bytes())
            options = ["-o", "esp.enable_encryption_decode:TRUE", "-o", "esp.enable_authentication_check:TRUE"]
        words = ["tshark", "-r", file, *options, "-T", "fields", "-E", "separator=/t", *(f"-e{field}" for field in fields)]
        environment = {**os.environ, "WIRESHARK_CONFIG_DIR": configuration}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return [dict(zip(fields, line.split("\t"))) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "protected",
    [tunnel(), tunnel(CBC_SHA256), tunnel(extra=IN_UDP), tunnel(CBC_SHA256, IN_UDP), tunnel(families=(4, 6))],
    ids=["gcm", "cbc-sha256", "gcm-in-udp", "cbc-sha256-in-udp", "gcm-over-ipv6"],
)
def test_wireshark_decrypts_the_wire_side(network, pair, folder, protected):  # noqa: F811
    left = start(pair, protected)
    file, keys = folder / "wire.pcapng", folder / "esp_sa"
    with capturing(left, file, "--wire", "-c", 6, "--keys", keys) as capture:
        network.left.ping(HERE.inner[4], THERE.inner[4], count=3)
        says = finish(capture)
    assert "6 packets captured" in says
    assert f"warning: {keys} has the keys of 2 states" in says and "can read all packets" in says
    assert keys.stat().st_mode & 0o777 == file.stat().st_mode & 0o777 == 0o600
    fields = ("frame.interface_name", "frame.comment", "frame.packet_flags_direction", "ip.dst", "icmp.type", "esp.icv_bad")
    sealed = dissect(file, *fields)
    assert all(packet["icmp.type"] == "" for packet in sealed), "the counter-test: without keys nothing is seen"
    packets = dissect(file, *fields, keys=keys)
    # On a busy machine ping does not wait for an answer.
    packets.sort(key=lambda packet: packet["frame.packet_flags_direction"], reverse=True)
    assert [packet["icmp.type"] for packet in packets] == [ECHO_REQUEST] * 3 + [ECHO_REPLY] * 3, packets
    assert all(THERE.inner[4] in packet["ip.dst"] or HERE.inner[4] in packet["ip.dst"] for packet in packets)
    assert {packet["frame.interface_name"] for packet in packets} == {"wire"}
    assert [int(packet["frame.packet_flags_direction"], 0) for packet in packets] == [2] * 3 + [1] * 3
    assert not any(packet["esp.icv_bad"] in ("1", "True") for packet in packets)
    comment = packets[0]["frame.comment"]
    assert comment.startswith(f"out protected, ESP {UXFRM_OUT} ") and "seq 1, policy " in comment, comment
    assert f"state {UXFRM_OUT} {HERE.outer[protected.outer]} -> {THERE.outer[protected.outer]} reqid 1" in comment
    assert packets[3]["frame.comment"].startswith("in, ESP 0x00001000 ")


def test_keys_say_what_wireshark_does_not_know(pair, folder):
    left, _ = pair
    chacha, ccm = tunnel(CHACHA20_POLY1305), Association(CCMS[2], "tunnel", 4, 4, reqid=2, generation=5)
    left.start([*chacha.states(HERE, THERE), *ccm.states(HERE, THERE)], more=CONTROLLED)
    code, text = run(left, "capture", "-c", 0, "--keys", folder / "esp_sa")
    assert code == 0 and text.count("Wireshark decrypts it from release 4.2 on") == 2, text
    assert text.count("is left out: Wireshark does not know rfc4309(ccm(aes))") == 2
    lines = (folder / "esp_sa").read_text().splitlines()
    secret = chacha.secret_towards(THERE)[:36].hex()
    assert f'"IPv4","{HERE.outer[4]}","{THERE.outer[4]}","{UXFRM_OUT}","ChaCha20 with Poly1305 [RFC7634]","0x{secret}","NULL",""' in lines
    assert len(lines) == 2 and secret not in text
    code, text = run(left, "capture", "-c", 0, "--keys", folder / "esp_sa")
    assert code == 1 and "has to be a new file" in text, "one that is there is left alone"
    code, text = run(left, "capture", "-c", 0, "--keys", folder / "one", "--spi", "0x1000")
    assert code == 0 and len((folder / "one").read_text().splitlines()) == 1
    code, text = run(left, "capture", "-c", 0, "--keys", folder / "none", "--spi", "0x4711")
    assert code == 1 and "there is no state to write keys of" in text and not (folder / "none").exists()


def test_plain_side_and_drops_have_comments(network, pair, folder):  # noqa: F811
    elsewhere = f"xfrm policy add src {HERE.inner[4]}/32 dst 10.7.0.1/32 dir out tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 9 mode tunnel"
    protected = tunnel()
    left, right = pair
    left.start([*protected.lines(HERE, THERE), elsewhere], more=CONTROLLED)
    right.start(protected.lines(THERE, HERE), more=CONTROLLED)
    network.left.ip("route add 10.7.0.1/32 dev lo")
    file = folder / "all.pcapng"
    with capturing(left, file) as capture:
        network.left.ping(HERE.inner[4], THERE.inner[4], count=1)
        with pytest.raises(RuntimeError):
            network.left.ping(HERE.inner[4], "10.7.0.1", count=1, seconds=1)
        patience.wait_for(lambda: len(dissect(file, "frame.number")) >= 6)
        capture.send_signal(signal.SIGINT)
        assert "6 packets captured" in finish(capture)
    packets = dissect(file, "frame.interface_name", "frame.comment", "ip.dst", "icmp.type")
    plain = [packet for packet in packets if packet["frame.interface_name"] == "uxfrm0"]
    assert [packet["icmp.type"] for packet in plain] == [ECHO_REQUEST, ECHO_REPLY, ECHO_REQUEST]
    comments = [packet["frame.comment"] for packet in plain]
    assert re.fullmatch(rf"out protected, policy \d+, state {UXFRM_OUT} .* reqid 1, worker 0", comments[0]), comments
    assert re.fullmatch(r"in passes, policy \d+, state 0x00001000 .* reqid 1, worker 0", comments[1]), comments
    assert comments[2].startswith("out dropped out_no_state, policy "), comments
    [dropped] = [packet for packet in packets if packet["frame.interface_name"] == "drops"]
    assert dropped["ip.dst"] == "10.7.0.1" and dropped["frame.comment"].startswith("dropped out_no_state, policy ")
    assert len(packets) == 6


def test_filters_select_and_lines_are_read(network, pair):  # noqa: F811
    left = start(pair, tunnel())
    selections = [
        (["--plain", "--host", "10.2.0.0/16", "--proto", "icmp", "--port", ECHO_REQUEST], "plain 10.1.0.1 -> 10.2.0.1 ICMP type 8 code 0, 148 B: out protected, policy "),
        (["--wire", "--spi", "0x1000"], f"wire  {THERE.outer[4]} -> {HERE.outer[4]} ESP, "),
        (["--plain", "--spi", "0x1000"], "plain 10.2.0.1 -> 10.1.0.1 ICMP type 0 code 0, 148 B: in passes, policy "),
        (["--plain", "--peer", THERE.outer[4], "--port", ECHO_REQUEST], "plain 10.1.0.1 -> 10.2.0.1 ICMP type 8 code 0, 148 B: out protected, "),
    ]
    for words, expected in selections:
        with running(left, "capture", "-c", 1, *words) as capture:
            patience.wait_for(lambda: pings(network) and capture.poll() is not None)
            line = capture.stdout.read()
            assert re.match(r"\d\d:\d\d:\d\d\.\d{6} ", line) and line[16:].startswith(expected), (words, line)
    with running(left, "capture", "-c", 1, "-j", "--plain", "-s", 20, "--port", ECHO_REQUEST) as capture:
        patience.wait_for(lambda: pings(network) and capture.poll() is not None)
        packet = json.loads(capture.stdout.readline())
        assert (packet["verdict"], packet["length"], len(packet["bytes"])) == ("leaves-protected", 148, 40)
    with running(left, "capture", "--host", "203.0.113.7", "-c", 1) as capture:
        pings(network)
        assert capture.poll() is None, "no packet is that one's"


def pings(network):  # noqa: F811
    network.left.ping(HERE.inner[4], THERE.inner[4], count=1)
    return True


def first_line(network, capture):  # noqa: F811
    """What a capture says first, once it has begun."""
    patience.wait_for(lambda: pings(network) and select.select([capture.stdout], [], [], 0)[0])
    return capture.stdout.readline()


def test_piped_capture_is_read_as_it_goes(network, pair):  # noqa: F811
    prerequisite.programs(tshark="tshark")
    left = start(pair, tunnel())
    # tshark reads a pipe live, in the same way as Wireshark does.
    piped = subprocess.Popen(command(left, "capture", "--plain", "-w", "-"), stdout=subprocess.PIPE)
    words = ["tshark", "-l", "-i", "-", "-c", "2", "-T", "fields", "-e", "icmp.type"]
    with piped, subprocess.Popen(words, stdin=piped.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader:
        try:
            patience.wait_for(lambda: pings(network) and reader.poll() is not None)
            # It may begin between a request and its reply.
            assert sorted(reader.stdout.read().split()) == [ECHO_REPLY, ECHO_REQUEST]
        finally:
            reader.kill()
            piped.kill()


def test_members_of_the_group_are_refused(network, pair, folder):  # noqa: F811
    left = start(pair, tunnel(), more=f"{CONTROLLED}\n[status]\ngroup = {READERS}\n")
    before = ["setpriv", "--reuid", str(NOBODY), "--regid", str(READERS), "--clear-groups"]
    assert run(left, "status", before=before)[0] == 0, "the counter-test: they are told of tunnels"
    for words in (["capture", "-c", 1], ["trace", 1], ["capture", "-c", 1, "-w", folder / "file"]):
        code, text = run(left, *words, before=before)
        assert code == 2 and "packets are shown to root and the gateway's own user alone" in text, text
    assert not (folder / "file").exists()
    folder.chmod(0o777)
    code, text = run(left, "capture", "-c", 0, "--keys", folder / "esp_sa", before=before)
    assert code == 2 and not (folder / "esp_sa").exists(), text


def test_capture_ends_with_its_client_and_few_run_at_a_time(network, pair):  # noqa: F811
    left = start(pair, tunnel())
    with contextlib.ExitStack() as stack:
        captures = [stack.enter_context(running(left, "capture", "-j")) for _ in range(4)]
        for capture in captures:
            assert json.loads(first_line(network, capture))["bytes"]
        code, text = run(left, "trace", 1)
        assert code == 2 and "4 captures and traces run already" in text, text
        captures[0].kill()
        captures[0].wait()
        with running(left, "trace", "1", "-j") as trace:
            patience.wait_for(lambda: pings(network) and trace.poll() is not None)
            assert trace.returncode == 0, trace.stderr.read()
    code, text = run(left, "capture", "-c", 1, "--host", "203.0.113.7", before=["timeout", "1"])
    assert code == 124, f"nobody else captures any more: {text}"


def test_stopped_reader_holds_up_nobody(network, pair):  # noqa: F811
    left = start(pair, tunnel())
    with running(left, "capture", "--plain", "-j", "--rate", 1000000) as capture:
        first_line(network, capture)
        capture.send_signal(signal.SIGSTOP)
        network.left.run("ping", "-q", "-f", "-c", "3000", "-I", HERE.inner[4], THERE.inner[4])
        status = json.loads(run(left, "status", "-j")[1])
        assert status["tunnels"][0]["received"]["packets"] >= 3000
        capture.send_signal(signal.SIGCONT)
        capture.stdout.readline()


def traced(network, gateway, *words):  # noqa: F811
    """What `uxfrm trace` prints of pings."""
    with running(gateway, "trace", *words) as trace:
        patience.wait_for(lambda: pings(network) and trace.poll() is not None)
        text, says = trace.communicate()
        assert trace.returncode == 0, says
        return text


def test_ping_is_traced_out_and_in(network, pair):  # noqa: F811
    left = start(pair, tunnel())
    for _ in range(3):
        pings(network)
    out, back = [json.loads(line) for line in traced(network, left, "2", "-j").splitlines()]
    assert (out["way"], out["port"], out["outcome"], out["length"]) == ("out", "host", "left-protected", 148)
    assert (out["path"], len(out["policies"])) == ("fast", 1)
    assert [state["spi"] for state in out["states"]] == [UXFRM_OUT]
    assert out["flow"]["destination"] == THERE.inner[4] and bytes.fromhex(out["bytes"])[9] == 1
    listed = left.namespace.run(str(left._binary), "xfrm", "policy", "get", "dir", "out", "index", str(out["policies"][0]))
    assert f"dst {THERE.inner[4]}/32" in listed
    assert (back["way"], back["port"], back["outcome"], back["path"]) == ("in", "wire", "delivered", "fast")
    assert back["esp"]["spi"] == "0x00001000" and back["sequence"] == back["esp"]["sequence"] == out["sequence"]
    stages = [[step["stage"] for step in trace["steps"]] for trace in (out, back)]
    assert stages == [["policy", "path", "bundle", "send"], ["path", "state", "open", "policy", "deliver"]]
    text = traced(network, left, "2")
    assert re.search(rf"^\d\d:\d\d:\d\d\.\d{{6}} {HERE.inner[4]} -> {THERE.inner[4]} ICMP type 8 code 0, 148 B, from host, worker 0$", text, re.M), text
    assert re.search(rf"^  ok   send      ESP {UXFRM_OUT} number \d+, {HERE.outer[4]} -> {THERE.outer[4]} proto 50, ", text, re.M), text
    assert re.search(r"^  ok   open      authentic$", text, re.M) and "\nleft in ESP\n" in text and "\nwas delivered\n" in text
    assert "\x1b" not in text


def test_trace_tells_why_a_packet_is_dropped(network, pair):  # noqa: F811
    left, _ = pair
    left.start(tunnel().policies(HERE, THERE), more=CONTROLLED)

    def silent():
        with pytest.raises(RuntimeError):
            network.left.ping(HERE.inner[4], THERE.inner[4], count=1, seconds=1)
        return True

    with running(left, "trace", "1", "--host", THERE.inner[4]) as trace:
        patience.wait_for(lambda: silent() and trace.poll() is not None)
        text = trace.stdout.read()
    assert "\nwas dropped: out_no_state\n" in text and re.search(r"^  fail drop      out_no_state$", text, re.M), text
    assert "cause: No state fits the template" in text
