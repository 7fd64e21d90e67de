"""Guides work when they are pasted: their blocks are taken from the pages and run as they stand, but
for copies to the other gateway."""

import contextlib
import os
import pathlib
import re
import subprocess

import pytest

import patience
import prerequisite
import topology
from gateway import CONTROLLED, Gateway
from test_readme import Pasted, pasted  # noqa: F401

DOCS = pathlib.Path(__file__).parents[2] / "docs"
COPY = re.compile(r"^scp ", re.M)


def blocks(page, heading):
    """The shell blocks of a section."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.S)


class Shell:
    """Pastes into a shell in a gateway's namespace and directory."""

    def __init__(self, uxfrm, namespace, directory):
        self._namespace, self._directory = namespace, directory
        self._environment = {**os.environ, "PATH": f"{uxfrm.parent}:{os.environ['PATH']}"}

    def paste(self, script):
        done = subprocess.run(
            ["ip", "netns", "exec", self._namespace.name, "bash", "-eu", "-c", script],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=patience.SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def pinging(namespace, source, destination):
    """Says at its end how many of its pings were lost."""
    command = ["ip", "netns", "exec", namespace.name, "ping", "-n", "-i", "0.02", "-I", source, destination]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen = []
    try:
        seen.append(process.stdout.readline())
        yield lambda: seen
    finally:
        process.send_signal(2)
        seen.append(process.communicate(timeout=patience.SECONDS)[0])


def test_static_keys_change_without_a_lost_packet(uxfrm, pasted):  # noqa: F811
    prerequisite.programs(openssl="openssl")
    directory, _ = pasted
    make, copy, read, send, end = blocks("static-keys.md", "New keys without a gap")
    assert COPY.search(copy) and not COPY.search(make + read + send + end)
    with topology.Sites() as sites, contextlib.ExitStack() as stack:
        ends = []
        for namespace, place in ((sites.left, directory), (sites.right, directory / "peer")):
            stack.callback(Pasted(uxfrm, namespace, place).close)
            ends.append(Shell(uxfrm, namespace, place))
        sites.left_host.ping("10.1.0.2", "10.2.0.2")
        with pinging(sites.left_host, "10.1.0.2", "10.2.0.2") as seen:
            ends[0].paste(make)
            (directory / "to-peer").rename(directory / "peer" / "from-peer")
            (directory / "peer" / "to-peer").write_text((directory / "from-peer").read_text())
            (directory / "to-peer").write_text((directory / "peer" / "from-peer").read_text())
            for step in (read, send):
                for shell in ends:
                    shell.paste(step)
                    sites.left_host.ping("10.1.0.2", "10.2.0.2")
            for shell in ends:
                before = shell.paste("uxfrm status")
                assert "0x00002001" in before and "0x00002002" in before, before
                shell.paste(end)
        assert " 0% packet loss" in seen()[-1], seen()[-1]
        for place in (directory, directory / "peer"):
            text = (place / "tunnel.batch").read_text()
            assert "spi 0x00002001" in text and "spi 0x00001001" not in text, text


@pytest.fixture
def gateway(uxfrm):
    with topology.Hosts() as hosts:
        made = Gateway(uxfrm, hosts.namespace("guide"))
        made.start(more=CONTROLLED)
        yield made
        made.close()


def test_a_script_of_ip_xfrm_runs_as_it_is(uxfrm, gateway):
    esp = "src 10.9.0.1 dst 10.9.0.2 proto esp"
    lines = [
        f"state add {esp} spi 0x1001 reqid 1 mode tunnel aead 'rfc4106(gcm(aes))' 0x{'4d1b' * 10} 128",
        f"policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out tmpl {esp} reqid 1 mode tunnel",
    ]
    directory = gateway.directory
    (directory / "tunnel.sh").write_text("".join(f"ip xfrm {line}\n" for line in lines))
    (directory / "tunnel.batch").write_text("xfrm state flush\nxfrm policy flush\n")
    shell = Shell(uxfrm, gateway.namespace, directory)
    [as_it_is] = blocks("from-ip-xfrm.md", "As they are")
    assert "spi 0x00001001" in shell.paste(as_it_is)
    assert "no gateway" not in shell.paste("uxfrm xfrm state list nokeys")
    [kept] = blocks("from-ip-xfrm.md", "As the gateway's own configuration")
    shell.paste(kept.replace("/etc/uxfrm/tunnel.batch", "saved.batch"))
    saved = (directory / "saved.batch").read_text()
    assert "spi 0x00001001" in saved and "dir out" in saved, saved
    assert "spi 0x00001001" not in gateway.namespace.run("ip", "xfrm", "state"), "the kernel has it"
