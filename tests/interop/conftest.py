"""Fixtures: the binary under test and the networks. Each network is built once a module; the one that takes longest, once."""

import pytest

import prerequisite
import topology


@pytest.fixture(scope="session")
def uxfrm():
    prerequisite.root()
    return prerequisite.binary()


@pytest.fixture(scope="session")
def qemu_network():
    prerequisite.qemu_peer()
    with topology.UxfrmAndQemu() as network:
        yield network


@pytest.fixture(scope="module")
def linux_network():
    prerequisite.linux_peer()
    with topology.UxfrmAndLinux() as network:
        yield network
