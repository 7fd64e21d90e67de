"""What a scrape each second costs the data path: the packets that pass with and without it, in turn.

`ROUNDS=20 scripts/interop --alone -s -k test_metrics_cost` prints it (docs/metrics.md). Nothing of it is
asserted but that packets passed and pages came: how fast is for readers, on a machine at rest.
"""

import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import threading
import time

import pytest

import patience
import prerequisite
from gateway import TUN, Gateway
from scraper import READABLE, Web
from test_lifecycle import network  # noqa: F401: a fixture
from test_metrics import PROTECTED, many_lines
from topology import HERE, THERE

ROUNDS = int(os.environ.get("ROUNDS", "2"))
WINDOW_SECONDS = 2
WORKER = re.compile(r"uxfrm-\d+")


def delivered(gateway):
    """Packets that the gateway has given to its host."""
    [link] = json.loads(gateway.namespace.ip(f"-s -j link show dev {TUN}"))
    return link["stats64"]["rx"]["packets"]


def threads(pid):
    """Processor time of a process's threads so far, in nanoseconds, by name."""
    taken = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        # Ended meanwhile.
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            taken[name] = taken.get(name, 0) + int((task / "schedstat").read_text().split()[0])
    return taken


@contextlib.contextmanager
def flood(network):  # noqa: F811
    """UDP through the tunnel, as fast as it goes."""
    with contextlib.ExitStack() as ends:
        def start(namespace, *words):
            process = subprocess.Popen(["ip", "netns", "exec", namespace.name, "iperf3", *words], stdout=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.kill)

        start(network.right, "-s", "-B", THERE.inner[4])
        patience.wait_for(lambda: ":5201" in network.right.run("ss", "-ltn"))
        start(network.left, "-c", THERE.inner[4], "-B", HERE.inner[4], "-u", "-b", "0", "-l", "1200", "-t", "3600")
        yield


class Scrapes:
    """One a second while it is switched on."""

    def __init__(self, web):
        self.web, self.pages = web, 0
        self.on, self.ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.ends.is_set():
            begun = time.monotonic()
            if self.on.is_set():
                self.web.page()
                self.pages += 1
            self.ends.wait(max(0.05, 1 - (time.monotonic() - begun)) if self.on.is_set() else 0.05)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self.ends.set()
        self._thread.join()


@pytest.mark.alone
@pytest.mark.parametrize("tunnels", [5, 5_000, 50_000])
def test_a_scrape_each_second_beside_traffic(uxfrm, network, capsys, tunnels):  # noqa: F811
    prerequisite.programs(iperf3="iperf3")
    with contextlib.ExitStack() as ends:
        left, right = gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
        for gateway in gateways:
            ends.callback(gateway.close)
        left.start([*PROTECTED.lines(HERE, THERE), *many_lines(tunnels)], guard="off", more=READABLE)
        right.start(PROTECTED.lines(THERE, HERE), more=READABLE)
        web = ends.enter_context(Web(uxfrm, network.left, left.directory))
        ends.enter_context(flood(network))
        scrapes = ends.enter_context(Scrapes(web))
        patience.wait_for(lambda: delivered(right) > 1000, "packets that pass")

        def window(scraped):
            """Packets a second, packets for a second of the worker's processor time, and what share
            of a processor the other threads take."""
            (scrapes.on.set if scraped else scrapes.on.clear)()
            time.sleep(0.3)
            packets, spent, begun = delivered(right), threads(left.pid), time.monotonic()
            time.sleep(WINDOW_SECONDS)
            packets, seconds = delivered(right) - packets, time.monotonic() - begun
            spent = {name: (after - spent.get(name, 0)) / 1e9 for name, after in threads(left.pid).items()}
            working = sum(taken for name, taken in spent.items() if WORKER.fullmatch(name))
            return packets / seconds, packets / working, (sum(spent.values()) - working) / seconds

        window(True)
        pages, status, served = scrapes.pages, threads(left.pid), sum(threads(web.pid).values())
        # With and without in turn, and in the other order every second time.
        scraped, idle = [], []
        for number in range(ROUNDS):
            for is_scraped in (True, False) if number % 2 else (False, True):
                (scraped if is_scraped else idle).append(window(is_scraped))
        pages = scrapes.pages - pages
        milliseconds = (threads(left.pid)["uxfrm-status"] - status["uxfrm-status"]) / 1e6 / pages
        serving = (sum(threads(web.pid).values()) - served) / 1e6 / pages
        rate, efficiency, others = (
            [statistics.median(one[figure] for one in windows) for windows in (scraped, idle)] for figure in range(3))
        with capsys.disabled():
            print(f"\n{2 * tunnels + 2} states, a scrape each second ({ROUNDS} rounds): {rate[0]:.0f} packets a second, {rate[1]:.0f} without;"
                  f" a worker's second carries {100 * (efficiency[0] / efficiency[1] - 1):+.1f} %;"
                  f" other threads take {100 * others[0]:.1f} % of a processor, {100 * others[1]:.1f} % without; a page costs {milliseconds:.1f} ms, and {serving:.1f} ms of uxfrm-web")
        assert pages > 0 and min(windows[0] for windows in scraped + idle) > 0
