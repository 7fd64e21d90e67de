"""`uxfrm top` on a terminal with a gateway that carries traffic: figures move, keys do what they say,
and however it ends the terminal is as it was."""

import contextlib
import os
import re
import signal
import subprocess

import pytest

import patience
import pictures
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from terminal import Terminal
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

TUNNEL = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32")
PICTURE = "top.svg"


@pytest.fixture
def gateway(uxfrm, network):
    """The left gateway, with another that answers it, and a tunnel that is down."""
    ends = [Gateway(uxfrm, side, workers=2) for side in (network.left, network.right)]
    down = f"xfrm policy add src 10.1.0.0/16 dst 10.7.0.0/16 dir out tmpl src {HERE.outer[4]} dst 10.9.0.7 proto esp reqid 9 mode tunnel"
    ends[0].start([*TUNNEL.lines(HERE, THERE), down], more=CONTROLLED)
    ends[1].start(TUNNEL.lines(THERE, HERE), more=CONTROLLED)
    yield ends[0]
    for end in ends:
        end.close()


@pytest.fixture
def top(gateway):
    with contextlib.ExitStack() as stack:

        def start(*words, **options):
            command = ["ip", "netns", "exec", gateway.namespace.name, gateway._binary, "top", *words]
            made = Terminal(command, **options)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def traffic(gateway):
    """Pings through the tunnel and into the one that is down, until the test is over."""
    pings = [
        subprocess.Popen(
            ["ip", "netns", "exec", gateway.namespace.name, "ping", "-q", "-i", every, "-s", "1200", "-I", HERE.inner[4], destination],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for every, destination in (("0.002", THERE.inner[4]), ("0.2", "10.7.0.1"))
    ]
    yield
    for ping in pings:
        ping.kill()
        ping.wait()


def number(word):
    """What a short number means; -1 for one that is not known."""
    found = re.fullmatch(r"([\d.]+)([kMGT]?)", word)
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]] if found else -1


def row(lines, first):
    """The words of the first row that begins so."""
    found = [line.split() for line in lines[3:17] if line.startswith(first)]
    return found[0] if found else []


def moving(lines, first, column):
    words = row(lines, first)
    return bool(words) and number(words[column]) > 0


def test_figures_move_under_traffic_in_every_view(top, traffic):
    terminal = top("-d", "0.5")
    terminal.wait_for(lambda lines: moving(lines, f"up      {THERE.outer[4]}", 3))
    terminal.wait_for(lambda lines: moving(lines, "down    10.9.0.7", 5))
    terminal.press("2")
    # The other worker may have the odd packet, too little for a share.
    busy = terminal.wait_for(lambda lines: [words for worker in "01" if (words := row(lines, worker)) and number(words[1]) > 0])
    _, share, out, _, out_bits, _, batches, _, cycles, *_ = map(number, max(busy, key=lambda words: number(words[2])))
    assert 0 < share <= 100 and out_bits > out and batches > 0 and cycles > 100, busy
    terminal.press("3")
    terminal.wait_for(lambda lines: any(moving([line] * 4, "esp4", 2) for line in lines))
    terminal.press("5")
    terminal.wait_for(lambda lines: moving(lines, "out_", 1))
    terminal.wait_for_text("cause: ")
    terminal.wait_for_text("next: ")
    terminal.press("6")
    terminal.wait_for(lambda lines: any(moving([line] * 4, f"{worker} out ipv4", 4) for line in lines for worker in "01"))
    terminal.press("4")
    terminal.wait_for_text("no offload devices")
    terminal.press("q")
    assert terminal.end() == 0 and terminal.is_restored()


def test_sort_filter_pause_and_help_by_their_keys(top, traffic):
    terminal = top("-d", "0.5")
    health = lambda lines: [line.split()[0] for line in lines[4:6] if line]
    terminal.wait_for(lambda lines: health(lines) == ["down", "up"])
    terminal.press("r")
    terminal.wait_for(lambda lines: health(lines) == ["up", "down"])
    terminal.press("r\x1b[C")
    terminal.wait_for(lambda lines: "PEER▲" in lines[3])
    terminal.press("s")
    terminal.wait_for(lambda lines: "REMOTE NETS▲" in lines[3])
    terminal.press("s")
    terminal.wait_for(lambda lines: "▼IN b/s" in lines[3] and health(lines) == ["up", "down"])
    terminal.press("/10.9.0.7\r")
    terminal.wait_for(lambda lines: health(lines) == ["down"])
    terminal.press("\x1b")
    terminal.wait_for(lambda lines: len(health(lines)) == 2)
    terminal.press(" ")
    terminal.wait_for(lambda lines: "PAUSED" in lines[0])
    terminal.press("?")
    terminal.wait_for_text("sort the other way round")
    terminal.press("q")  # any key closes the help, and does nothing else
    terminal.wait_for(lambda lines: "PEER" in lines[3])
    terminal.press("q")
    assert terminal.end() == 0 and terminal.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_and_the_terminal_is_restored(number, top):
    terminal = top()
    terminal.wait_for_text(THERE.outer[4])
    # `ip netns exec` has become the program itself.
    os.kill(terminal.process.pid, number)
    assert terminal.end() == 128 + number and terminal.is_restored()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(gateway):
    """A shell stops it, has the terminal meanwhile, and lets it go on when a line was typed."""
    job = f"ip netns exec {gateway.namespace.name} {gateway._binary} top"
    shell = f"{job}; echo shell has it; read; fg; echo code $?"
    with contextlib.closing(Terminal(["bash", "-mc", shell])) as terminal:
        terminal.wait_for_text(THERE.outer[4])
        terminal.press("\x1a")
        patience.wait_for(lambda: b"shell has it" in terminal.output, terminal.text)
        assert terminal.is_restored()
        seen = len(terminal.output)
        terminal.press("\n")
        patience.wait_for(lambda: THERE.outer[4].encode() in terminal.output[seen:], terminal.text)
        assert not terminal.is_restored()
        terminal.press("q")
        assert terminal.end() == 0 and terminal.is_restored()
        assert b"code 0" in terminal.output


def test_a_gateway_that_goes_is_said_and_one_that_comes_is_shown(top, gateway):
    terminal = top("-d", "0.5")
    terminal.wait_for_text(THERE.outer[4])
    gateway.stop()
    terminal.wait_for_text("no gateway answers: no uxfrm runs")
    assert any(THERE.outer[4] in line for line in terminal.lines()), "what was known stays"
    gateway.launch()
    terminal.wait_for(lambda lines: "every 0.5 s" in lines[0])
    terminal.press("q")
    assert terminal.end() == 0


def test_other_sizes_and_no_colours(top):
    terminal = top(columns=40, lines=12, environment={"NO_COLOR": "1"})
    terminal.wait_for_text(THERE.outer[4])
    assert all(len(line) <= 40 for line in terminal.lines())
    terminal.resize(30, 8)
    terminal.wait_for_text("too small")
    terminal.resize(120, 50)
    terminal.wait_for(lambda lines: "REQID" in lines[6])
    terminal.press("q")
    assert terminal.end() == 0
    assert not re.search(rb"\x1b\[[0-9;]*(3[1-7]|38;5|38;2|9[0-7])[;m]", terminal.output)


def run(gateway, *words):
    command = ["ip", "netns", "exec", gateway.namespace.name, str(gateway._binary), "top", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience.SECONDS, stdin=subprocess.DEVNULL)


def test_once_prints_a_frame_for_scripts(gateway, traffic):
    done = run(gateway, "--once", "-d", "2", "--sort", "peer")
    assert done.returncode == 0 and "\x1b" not in done.stdout and done.stdout.isascii(), done
    lines = done.stdout.splitlines()
    assert lines[0].startswith("uxfrm ") and "2 tunnels: 1 down 1 up" in lines[1], done.stdout
    assert [line.split()[:2] for line in lines[3:]] == [["up", THERE.outer[4]], ["down", "10.9.0.7"]]
    often = run(gateway, "--once", "-d", "0.2", "-v", "workers")
    assert "in -" not in often.stdout.splitlines()[1], "workers tell about once a second"
    done = run(gateway, "-b", "-v", "drops", "out_")
    assert "out_no_state" in done.stdout, done.stdout
    done = run(gateway)
    assert done.returncode == 1 and "`uxfrm top --once` prints a frame" in done.stderr
    done = run(gateway, "-b", "-s", "nonsense")
    assert done.returncode == 2 and "HEALTH, PEER" in done.stderr
    gateway.stop()
    done = run(gateway, "--once")
    assert done.returncode == 2 and "no uxfrm runs in this network namespace" in done.stderr


def test_the_picture_of_the_documentation(gateway, top, traffic):
    """Draws docs/images/top.svg, where `scripts/pictures` asks for it."""
    for line in pictures.idle_tunnels():
        gateway.ip(line)
    terminal = top("-d", "1")
    terminal.wait_for(lambda lines: moving(lines, f"up      {THERE.outer[4]}", 3))
    terminal.wait_for(lambda lines: moving(lines, "down    10.9.0.7", 5) and row(lines, "idle    10.9.0.14"))
    drawn = pictures.svg(terminal.screen)
    assert drawn.startswith("<svg") and THERE.outer[4] in drawn
    pictures.keep(PICTURE, drawn.encode())
    terminal.press("q")
    assert terminal.end() == 0
