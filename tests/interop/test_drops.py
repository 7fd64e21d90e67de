"""`uxfrm drops` tells of dropped packets: whose they were, why, and what to do."""

import json
import re
import socket
import subprocess

import pytest

import patience
from test_scapy import UxfrmEnd, sealed_request, security_association
from test_stat import TUNNEL, flip_last_bit, unknown_spi
from topology import HERE, THERE

NOBODY, READERS = 65534, 64999
ELSEWHERE = f"xfrm policy add src {HERE.inner[4]}/32 dst 10.7.0.1/32 dir out tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 9 mode tunnel"


@pytest.fixture(scope="module")
def module_end(uxfrm):
    made = UxfrmEnd(uxfrm)
    yield made
    made.close()


@pytest.fixture
def end(module_end):
    yield module_end
    module_end.release()


def command(end, uxfrm, *words, before=()):
    return ["ip", "netns", "exec", end.network.here.name, *before, str(uxfrm), "drops", *words]


def records(end, uxfrm, *words):
    text = subprocess.run(command(end, uxfrm, "-j", *words), capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def send_plain(end, destination, packets=1):
    with end.network.here.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HERE.inner[4], 4242))
        for _ in range(packets):
            sender.sendto(b"?", (destination, 9))


def test_records_name_flow_state_and_policy(uxfrm, end):
    end.protect([*TUNNEL.lines(HERE, THERE), ELSEWHERE])
    assert records(end, uxfrm) == []
    end.network.here.ip("route add 10.7.0.1/32 dev lo")
    send_plain(end, "10.7.0.1")
    ours = security_association(TUNNEL, THERE, HERE)
    end.network.far.send(sealed_request(TUNNEL, end, unknown_spi(), b""))
    end.network.far.send(flip_last_bit(sealed_request(TUNNEL, end, ours, b"")))
    told = patience.wait_for(lambda: (found := {record["reason"]: record for record in records(end, uxfrm)}) and len(found) == 3 and found)
    lost = told["out_no_state"]
    assert lost["flow"] == {"source": HERE.inner[4], "destination": "10.7.0.1", "protocol": 17, "source_port": 4242, "destination_port": 9}
    listed = end.network.here.run(str(uxfrm), "xfrm", "policy", "get", "dir", "out", "index", str(lost["policy"]))
    assert "dst 10.7.0.1/32" in listed, "the index leads to the policy"
    assert told["in_no_state"]["esp"]["spi"] == "0x00bad5b1" and told["in_no_state"]["esp"]["source"] == THERE.outer[4]
    forged = told["in_forged"]
    assert forged["state"] == {"spi": "0x00001000", "source": THERE.outer[4], "destination": HERE.outer[4], "reqid": 1}
    assert [record["reason"] for record in records(end, uxfrm, "--reason", "in_forged")] == ["in_forged"]
    assert {record["reason"] for record in records(end, uxfrm, "--peer", THERE.outer[4])} == {"in_forged", "in_no_state"}
    assert [record["reason"] for record in records(end, uxfrm, "--peer", "10.7.0.0/16")] == ["out_no_state"]
    text = subprocess.run(command(end, uxfrm), capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^\d\d:\d\d:\d\d\.\d{{3}} #\d+ out_no_state, {HERE.inner[4]} -> 10\.7\.0\.1 UDP 4242 9, policy \d+, 29 B$", text, re.M), text
    assert text.count("    cause: ") == text.count("    next: ") == 3
    wrong = subprocess.run(command(end, uxfrm, "--reason", "in_forgd"), capture_output=True, text=True)
    assert wrong.returncode == 2 and "Most alike: in_forged, " in wrong.stderr and "`uxfrm stat --reasons` lists all" in wrong.stderr


def test_counts_are_by_state_policy_and_tunnel(uxfrm, end):
    end.protect([*TUNNEL.lines(HERE, THERE), ELSEWHERE])
    send_plain(end, "10.7.0.1", packets=5)
    ours = security_association(TUNNEL, THERE, HERE)
    good = sealed_request(TUNNEL, end, ours, b"good")
    for _ in range(4):
        end.network.far.send(good)
    by_state = patience.wait_for(lambda: [tally for tally in records(end, uxfrm, "--by", "sa") if tally["packets"] == 3])
    assert [(tally["state"]["spi"], tally["reason"]) for tally in by_state] == [("0x00001000", "in_replay")]
    by_policy = patience.wait_for(lambda: [tally for tally in records(end, uxfrm, "--by", "policy") if tally["packets"] == 5])
    assert [tally["reason"] for tally in by_policy] == ["out_no_state"]
    assert records(end, uxfrm, "--by", "device") == []
    done = subprocess.run(["ip", "netns", "exec", end.network.here.name, str(uxfrm), "status", "-j"], capture_output=True, text=True)
    drops = {tunnel["reqid"]: tunnel["drops"] for tunnel in json.loads(done.stdout)["tunnels"]}
    assert drops == {9: {"out_no_state": 5}, 1: {"in_replay": 3}}, drops


def test_who_follows_is_told_as_it_happens(uxfrm, end):
    end.protect(TUNNEL.policies(HERE, THERE))
    with subprocess.Popen(command(end, uxfrm, "-f", "-j", "--reason", "out_no_state"), stdout=subprocess.PIPE, text=True) as follower:
        try:
            for _ in range(3):
                send_plain(end, THERE.inner[4])
                assert json.loads(follower.stdout.readline())["reason"] == "out_no_state"
        finally:
            follower.kill()


def test_readers_by_group_see_no_bytes(uxfrm, end):
    end._gateway.start(TUNNEL.policies(HERE, THERE), more=f"\n[status]\ngroup = {READERS}\n")
    send_plain(end, THERE.inner[4])
    [told] = patience.wait_for(lambda: records(end, uxfrm))
    assert bytes.fromhex(told["head"]).endswith(b"?")
    before = ["setpriv", "--reuid", str(NOBODY), "--regid", str(READERS), "--clear-groups"]
    seen = json.loads(subprocess.run(command(end, uxfrm, "-j", before=before), capture_output=True, text=True, check=True).stdout)
    assert "head" not in seen and seen == {name: value for name, value in told.items() if name != "head"}
