"""pyroute2 (PyPI) lists uxfrm's states and policies through `uxfrm exec`: a netlink library that
is neither iproute2's nor ours."""

import json
import os
import pathlib
import subprocess

import pytest

import prerequisite
import topology
from association import GCM_128, Association
from gateway import Gateway
from topology import HERE, THERE

LISTER = pathlib.Path(__file__).parents[1] / "peer" / "list_xfrm.py"
PYROUTE2 = "pyroute2==0.9.7"
ASSOCIATION = Association(GCM_128, "tunnel", 4, 4)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with pyroute2, in an environment of its own."""
    return prerequisite.python_package(tmp_path_factory.mktemp("venv"), PYROUTE2) / "python"


class ControlledGateway(Gateway):
    def write(self, lines, guard="auto", more="", wire="", at_exit="open"):
        super().write(lines, guard, more, wire, at_exit)
        with open(self.directory / "config.toml", "a") as config:
            config.write("\n[control]\nenabled = true\n")


def listed(python, uxfrm, namespace, *through):
    command = ["ip", "netns", "exec", namespace.name, *through, python, LISTER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_pyroute2_lists_states_and_policies(uxfrm, python):
    with topology.TwoGateways("wire0") as network:
        topology.place(network.left, "wire0", HERE)
        gateway = ControlledGateway(uxfrm, network.left)
        network.callback(gateway.close)
        gateway.start(ASSOCIATION.lines(HERE, THERE))
        assert listed(python, uxfrm, network.left) == [], "the kernel's own has none"
        told = listed(python, uxfrm, network.left, uxfrm, "exec", "--")
        states = [line for line in told if "spi" in line]
        assert sorted((state["src"], state["dst"], state["spi"]) for state in states) == [
            (HERE.outer[4], THERE.outer[4], THERE.spi),
            (THERE.outer[4], HERE.outer[4], HERE.spi),
        ]
        assert {state["algorithm"] for state in states} == {GCM_128.aead}
        policies = [(line["src"], line["dst"], line["dir"], line["templates"]) for line in told if "dir" in line]
        inner = f"{HERE.inner[4]}/32", f"{THERE.inner[4]}/32"
        assert sorted(policies) == [(*inner, 1, 1), (*inner[::-1], 0, 1)]
