"""`uxfrm reload` and SIGHUP: of what files say only the difference is carried out, all of it or
nothing, without a gap."""

import dataclasses
import re
import time

import pytest

import patience
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from namespace import UNANSWERED_SECONDS
from test_lifecycle import clean, flooding, gateway, host_state, network  # noqa: F401: two are fixtures
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)
NARROW = "xfrm policy add src 10.7.0.0/24 dst 10.8.0.0/24 dir in priority 7 action block"
OTHER = "xfrm policy add src 10.7.1.0/24 dst 10.8.0.0/24 dir in priority 7 action block"


def reload(gateway, *options, check=True):
    """What it prints, errors too."""
    words = " ".join(["reload", *options])
    return gateway.namespace.run("sh", "-c", f"{gateway._binary} {words} 2>&1", check=check)


def listed(gateway):
    """All states and policies, without what passing time and packets change."""
    return [gateway.ip(f"xfrm {kind}") for kind in ("state", "policy")]


def last_sent(gateway):
    """The highest number sent by any state."""
    return max(int(number, 16) for number in re.findall(r"oseq 0x([0-9a-f]+)", gateway.ip("xfrm state")))


def test_only_what_files_say_otherwise_changes(gateway, network):
    lines = PROTECTED.lines(HERE, THERE)
    gateway.start([*lines, NARROW], more=CONTROLLED)
    gateway.ip("xfrm policy add src 10.7.9.0/24 dst 10.8.0.0/24 dir in action block")
    with pytest.raises(RuntimeError):
        network.left.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)
    sent, before = last_sent(gateway), listed(gateway)
    assert sent > 0, "a state has numbers to keep"
    assert reload(gateway) == "nothing is different\n"

    gateway.write([*lines, OTHER], more=CONTROLLED)
    plan = ["+ policy src 10.7.1.0/24 dst 10.8.0.0/24 dir in action block priority 7",
            "- policy src 10.7.0.0/24 dst 10.8.0.0/24 dir in action block priority 7"]
    assert reload(gateway, "--dry-run").splitlines() == plan
    assert listed(gateway) == before
    assert reload(gateway).splitlines() == plan
    policies = gateway.ip("xfrm policy")
    assert "src 10.7.1.0/24" in policies and "src 10.7.0.0/24" not in policies
    assert "src 10.7.9.0/24" in policies, "what a client put in stays"
    assert last_sent(gateway) >= sent, "states whose lines are the same go on"
    assert reload(gateway) == "nothing is different\n"
    gateway.stop()


def test_what_will_not_work_is_warned_of_once(gateway, network):
    """A line may be right, and its packets be dropped all the same: `check` says so, and so do a
    reload and a start."""
    lines = PROTECTED.lines(HERE, THERE)
    template = next(line for line in lines if " dir in " in line).split(" tmpl ")[1]
    mixed = f"xfrm policy add src fd02::/64 dst fd01::/64 dir in tmpl {template}"
    gateway.start(lines, more=CONTROLLED)
    assert "af-unspec" not in gateway.log()
    gateway.write([*lines, mixed], more=CONTROLLED)
    warning = "flag af-unspec"
    for options in (["--dry-run"], []):
        said = reload(gateway, *options)
        assert "+ policy src fd02::/64" in said and "warning: " in said and warning in said, said
    assert reload(gateway) == "nothing is different\n"
    gateway.write(lines, more=CONTROLLED)
    assert "warning" not in reload(gateway)
    saved = gateway.namespace.run(str(gateway._binary), "xfrm", "save") + mixed.removeprefix("xfrm ") + "\n"
    (gateway.directory / "wanted").write_text(saved)
    for options in (["--dry-run"], []):
        said = gateway.namespace.run(str(gateway._binary), "xfrm", "sync", *options, str(gateway.directory / "wanted"))
        assert "+ policy src fd02::/64" in said and warning in said, said
    gateway.stop()
    gateway.start([*lines, mixed], more=CONTROLLED)
    assert warning in gateway.log()
    gateway.stop()


def test_what_is_wrong_changes_nothing(gateway, network):
    lines = PROTECTED.lines(HERE, THERE)
    gateway.start(lines, more=CONTROLLED)
    before = host_state(network.left), listed(gateway)
    gateway.write([*lines[1:], OTHER, "xfrm policy add src 10.7.0.0/33 dst 10.8.0.0/24 dir in"], more=CONTROLLED)
    said = reload(gateway, check=False)
    assert f"xfrm.batch:{len(lines) + 1}:" in said, said
    gateway.write([*lines, NARROW, NARROW], more=CONTROLLED)
    said = reload(gateway, check=False)
    assert f"xfrm.batch:{len(lines) + 2}:" in said and "exist" in said, said
    gateway.write(lines, more="[nonsense]\n")
    said = reload(gateway, check=False)
    assert "config.toml:" in said and "nonsense" in said, said
    assert (host_state(network.left), listed(gateway)) == before
    gateway.stop()


def test_sighup_does_the_same_and_tells_the_log(gateway, network):
    lines = PROTECTED.lines(HERE, THERE)
    gateway.start(lines, more=CONTROLLED)
    gateway.write([*lines, OTHER], more=CONTROLLED)
    gateway.hang_up()
    wait_for(gateway, "reload: + policy src 10.7.1.0/24")
    wait_for(gateway, "files were read again changes=1 faults=0")
    assert "src 10.7.1.0/24" in gateway.ip("xfrm policy")
    gateway.write(["xfrm nonsense"], more=CONTROLLED)
    gateway.hang_up()
    wait_for(gateway, "xfrm.batch:1:")
    assert "src 10.7.1.0/24" in gateway.ip("xfrm policy")
    gateway.stop()


def with_other_keys(line):
    """The same state with the key of the next generation."""
    later = dataclasses.replace(PROTECTED, generation=1)
    for side in (HERE, THERE):
        words = [one.transform.words(one.secret_towards(side)) for one in (PROTECTED, later)]
        line = line.replace(*words)
    return line


def wait_for(gateway, words):
    deadline = time.monotonic() + patience.SECONDS
    while words not in plain(gateway.log()):
        assert gateway.running() and time.monotonic() < deadline, gateway.log()
        time.sleep(0.01)


def plain(log):
    """Without what a terminal would show as colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", log)


def test_keys_that_are_followed_and_keys_that_wait(gateway, network):
    lines = PROTECTED.lines(HERE, THERE)
    gateway.start(lines, more=CONTROLLED, at_exit="open")
    gateway.write(lines, more=CONTROLLED + "\n[crypto]\nbackend = \"portable\"\n", at_exit="block")
    told = ["~ [host] at_exit", "! [crypto] backend is for the next start"]
    assert reload(gateway).splitlines() == told
    assert reload(gateway).splitlines() == told[1:], "it still waits"
    gateway.stop()
    assert "unreachable" in network.left.ip("-4 route show table all"), "it ended as it was told by then"
    clean(gateway, network)


def test_tunnels_and_ports_follow_their_files(gateway, network):
    batch = gateway.directory / "tunnels"
    more = CONTROLLED + f"\n[tunnel]\nbatch = [\"{batch}\"]\n"
    first = f"link add one type gre local {HERE.outer[4]} remote {THERE.outer[4]} key 1\n"
    second = first.replace("one", "two").replace("key 1", "key 2")
    batch.write_text(first + "fou add port 5555 ipproto 4\n")
    gateway.start([], more=more)
    batch.write_text(second + first.replace("key 1", "key 7"))
    assert reload(gateway).splitlines() == ["+ tunnel two", "~ tunnel one", "- receive port 5555"]
    links = network.left.run(str(gateway._binary), "link", "show")
    assert "two" in links and "5555" not in network.left.run(str(gateway._binary), "fou", "show")
    assert "key 0.0.0.7" in links or "ikey 0.0.0.7" in network.left.run(str(gateway._binary), "link", "-d", "show"), links
    batch.write_text(second)
    assert reload(gateway).splitlines() == ["- tunnel one"]
    gateway.stop()


@pytest.mark.parametrize("guard", ["auto", "off"])
def test_nothing_leaves_in_the_clear_while_policies_and_keys_change(gateway, network, guard):
    """The wide policy and the narrow one take each other's place, and states get other keys,
    while packets are sent as fast as may be."""
    lines = PROTECTED.lines(HERE, THERE)
    wide = [line.replace(f"dst {THERE.inner[4]}/32 dir out", "dst 10.2.0.0/16 dir out") for line in lines]
    assert wide != lines
    rekeyed = [with_other_keys(line) for line in lines]
    assert rekeyed[2:] == lines[2:] and rekeyed[:2] != lines[:2]
    gateway.start(lines, more=CONTROLLED, guard=guard)
    network.between.seen()
    with flooding(network.left):
        for turn in range(12):
            gateway.write([wide, rekeyed, lines][turn % 3], more=CONTROLLED, guard=guard)
            reload(gateway)
    frames = [frame for outgoing, frame in network.between.seen() if outgoing]
    assert any(wire.protocol(frame) == "esp" for frame in frames)
    wire.assert_no_plaintext([(True, frame) for frame in frames])
    gateway.stop()
