"""Fixtures: the binary under test and the networks. Each network is built once a module; the one
that takes longest, once a process.

And what pytest does beside: the order in several processes (schedule.py), the list of what
failed, the durations of the files.
"""

import collections
import os
import pathlib

import pytest

import prerequisite
import schedule
import topology


# What `make packages` has made is there only for `make test-packages`.
collect_ignore = [] if "UXFRM_PACKAGES" in os.environ else ["test_release_packages.py"]


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


def pytest_addoption(parser):
    parser.addoption("--write-durations", action="store_true", help="write durations.tsv anew, for the files that run")
    parser.addoption("--list-failures", type=pathlib.Path, metavar="FILE", help="write what fails to FILE, a line each")


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: needs the machine to itself; runs when all else has ended")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(config))


def pytest_collection_modifyitems(config, items):
    """In each of several processes: the units in their order."""
    if hasattr(config, "workerinput"):
        place = {test: number for number, test in enumerate(schedule.units([item.nodeid for item in items], schedule.read()))}
        items.sort(key=lambda item: place[item.nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        """Gives each process one unit after the other."""

        _units = {}

        def schedule(self):
            if not self._units:
                self._units = schedule.units(next(iter(self.registered_collections.values())), schedule.read())
            super().schedule()

        def _split_scope(self, nodeid):
            return self._units[nodeid]

    return Units(config, log)


class Record:
    """What all processes together have run."""

    def __init__(self, config):
        self._list = config.getoption("--list-failures")
        # Of those that run alone nothing is to be planned.
        self._write_durations = config.getoption("--write-durations") and config.getoption("-m") != "alone"
        self._seconds = collections.Counter()
        if self._list:
            self._list.write_text("")

    def pytest_runtest_logreport(self, report):
        self._seconds[schedule.file_of(report.nodeid)] += report.duration
        if report.failed:
            self._note(report)

    def pytest_collectreport(self, report):
        if report.failed:
            self._note(report)

    def _note(self, report):
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message.splitlines()[0] if crash and crash.message else ""
        if self._list:
            with open(self._list, "a") as failures:
                print(f"tests/{report.nodeid}: {message}"[:160], file=failures)

    def pytest_sessionfinish(self):
        if self._write_durations:
            schedule.write(self._seconds)
