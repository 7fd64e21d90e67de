"""How several processes share the suite: what one of them runs as a unit, and which units begin
first.

A unit is a file, whose tests share networks, or a piece of a long one; the files that share a
guest in QEMU, which boots for half a minute, are one. The longest files begin first, so that no
process has a long unit left when the others are through. durations.tsv says how long each file
takes; it decides about the order alone, and a file that is not in it runs, too.
"""

import math
import pathlib

DURATIONS = pathlib.Path(__file__).with_name("durations.tsv")
PIECE_SECONDS = 60
UNKNOWN_SECONDS = 10
QEMU, OF_QEMU = "qemu", {"test_esp_in_fou.py", "test_fou_kernel.py", "test_link.py"}


def read(path=DURATIONS):
    """Seconds by a file's name."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: float(seconds) for seconds, name in (line.split("\t") for line in lines if not line.startswith("#"))}


def write(seconds, path=DURATIONS):
    """Puts these files' durations in the place of what was known of them, the longest first."""
    known = read(path) | seconds
    lines = [f"{known[name]:.1f}\t{name}\n" for name in sorted(known, key=lambda name: (-known[name], name))]
    path.write_text("# Seconds that each file's tests take, by `scripts/interop --write-durations`.\n" + "".join(lines))


def file_of(test):
    """The file's name in a test's identifier."""
    return test.partition("::")[0].rpartition("/")[2]


def units(tests, seconds, piece_seconds=PIECE_SECONDS):
    """The unit of each test, as {identifier: (name, number of the piece)}, in the order in which
    they are to begin."""
    found, members = {}, {}
    for test in tests:
        name = file_of(test)
        members.setdefault(QEMU if name in OF_QEMU else name, {}).setdefault(name, []).append(test)
    lasts = {unit: sum(seconds.get(name, UNKNOWN_SECONDS) for name in files) for unit, files in members.items()}
    for unit in sorted(members, key=lambda unit: -lasts[unit]):
        run = [test for file in members[unit].values() for test in file]
        pieces = 1 if unit == QEMU else max(1, math.ceil(lasts[unit] / piece_seconds))
        length = math.ceil(len(run) / pieces)
        found |= {test: (unit, number // length) for number, test in enumerate(run)}
    return found
