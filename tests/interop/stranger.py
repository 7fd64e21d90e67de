"""Some user of the host who has taken the gateway's abstract socket names."""

import contextlib
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

USER = 2

NAMES = ("seqpacket xfrm", "stream stat", "dgram udp/4500")

# Connections to a name until its queue is full.
FILL = """
import socket
def fill(kind, name):
    held = []
    while True:
        held.append(socket.socket(socket.AF_UNIX, kind))
        held[-1].setblocking(False)
        try:
            held[-1].connect(f"\\0uxfrm/{name}")
        except BlockingIOError:
            return held
"""

SQUATS = FILL + """
import os, sys
held = []
for kind, name in map(str.split, sys.argv[2:]):
    kind = getattr(socket, f"SOCK_{kind.upper()}")
    held.append(socket.socket(socket.AF_UNIX, kind))
    held[-1].bind(f"\\0uxfrm/{name}")
    if sys.argv[1] not in ("silent", "connected") and kind != socket.SOCK_DGRAM:
        held[-1].listen(0)
    if sys.argv[1] == "full" and kind != socket.SOCK_DGRAM:
        held += fill(kind, name)
if sys.argv[1] == "connected":
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    held[-1].bind("\\0stranger")
    held[-2].connect("\\0stranger")
print("ready", flush=True)
if sys.argv[1] == "su":
    [each.set_inheritable(True) for each in held]
    os.execv("/usr/bin/su", ["su"])
if sys.argv[1].startswith("/"):
    [each.set_inheritable(True) for each in held]
    os.execv(sys.argv[1], ["uxfrm"])
sys.stdin.read()
"""


@contextlib.contextmanager
def stranger(namespace, manner, names=NAMES):
    """Somebody who has the gateway's names, and accepts connections, does not listen, or has let
    its queue fill, or has connected its socket to another; or who seems to be more than that, in a user namespace of its own or as a
    program that root lets anybody run, by its owner or by capabilities of its file."""
    as_user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    if manner == "namespace":
        as_user += ["unshare", "--user", "--map-root-user"]
    place = contextlib.ExitStack()
    if manner == "capable":
        manner = place.enter_context(capable())
    with namespace.entered():
        process = subprocess.Popen(
            [*as_user, "/usr/bin/python3", "-c", SQUATS, manner, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.terminate()
        process.communicate()
        place.close()


@contextlib.contextmanager
def capable():
    """A program of root's that has CAP_NET_ADMIN whoever runs it, as dumpcap has in a group."""
    place = next(place for place in ("/var/tmp", "/tmp", "/root") if not os.statvfs(place).f_flag & os.ST_NOSUID)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        os.chmod(directory, 0o755)
        program = pathlib.Path(directory) / "cat"
        shutil.copy("/bin/cat", program)
        # VFS_CAP_REVISION_2 with VFS_CAP_FLAGS_EFFECTIVE (`linux/capability.h`).
        os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 12, 0, 0, 0))
        yield str(program)
