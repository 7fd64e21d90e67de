"""The README's gateway works when it is pasted: its blocks are taken from the text and run as they
stand, but for the copy to the other gateway."""

import os
import pathlib
import re
import subprocess

import pytest

import patience
import prerequisite
import topology
from gateway import READY
from wire import assert_only

README = pathlib.Path(__file__).parents[2] / "README.md"
COPY = re.compile(r"^scp .*\n", re.M)


def blocks():
    section = README.read_text().split("\n## A gateway\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.S)


@pytest.fixture
def pasted(uxfrm, tmp_path):
    """What the first two blocks write, in one shell, as one who pastes them has."""
    prerequisite.programs(openssl="openssl")
    here, there, *_ = blocks()
    assert COPY.search(there)
    environment = {**os.environ, "PATH": f"{uxfrm.parent}:{os.environ['PATH']}"}
    script = here + COPY.sub("", there)
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience.SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path, done.stdout


class Pasted:
    """`uxfrm run gateway.toml` in a directory, whose store of numbers is its own: on two hosts it
    would be in /var/lib."""

    def __init__(self, uxfrm, namespace, directory):
        config = directory / "gateway.toml"
        config.write_text(config.read_text().replace("[xfrm]\n", '[xfrm]\nsequences = "sequences"\n'))
        self._log = directory / "log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", namespace.name, uxfrm, "run", "gateway.toml"], cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        patience.wait_for(lambda: READY in self._log.read_text(), self._log.read_text)

    def close(self):
        self._process.terminate()
        self._process.wait(patience.SECONDS)


def test_the_gateway_of_the_readme_works_when_pasted(uxfrm, pasted):
    directory, said = pasted
    # Of what a host has to be set to, the README's next block speaks.
    assert "warning" not in said.replace("warning: net.ipv4.ip_forward is 0", ""), said
    keys = re.findall(r"0x[0-9a-f]{40} 128", (directory / "tunnel.batch").read_text())
    assert len(set(keys)) == 2
    assert all(file.stat().st_mode & 0o077 == 0 for file in directory.glob("**/tunnel.batch"))
    with topology.Sites() as sites:
        ends = []
        try:
            ends.append(Pasted(uxfrm, sites.left, directory))
            ends.append(Pasted(uxfrm, sites.right, directory / "peer"))
            sites.between.seen()
            sites.left_host.ping("10.1.0.2", "10.2.0.2")
            sites.right_host.ping("10.2.0.2", "10.1.0.2")
            sites.left.ping("10.1.0.1", "10.2.0.2")  # the gateway itself, by `dir in`
            assert_only("esp", sites.between.seen())
            for word in ("status", "why 10.1.0.2 10.2.0.2 tcp 443"):
                told = sites.left.run(str(uxfrm), *word.split())
                assert "10.9.0.2" in told and "down" not in told, told
        finally:
            for end in ends:
                end.close()
            for gateway in (sites.left, sites.right):
                gateway.run(str(uxfrm), "clean", check=False)


def test_each_command_of_the_last_block_is_one(uxfrm):
    """The commands that follow are known to the program."""
    last = blocks()[2]
    commands = {line.split()[1] for line in last.splitlines() if line.startswith("uxfrm ")}
    known = subprocess.run([uxfrm, "help"], capture_output=True, text=True, timeout=patience.SECONDS, check=True).stdout
    listed = {line.split()[0] for line in known.splitlines() if line.startswith("  ") and line.split()}
    assert commands and commands <= listed, commands - listed
