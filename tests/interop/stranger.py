"""Some user of the host who has taken the gateway's abstract socket names."""

import contextlib
import subprocess

USER = 2

NAMES = ("seqpacket xfrm", "stream stat", "dgram udp/4500")

SQUATS = """
import os, socket, sys
held = []
for kind, name in map(str.split, sys.argv[2:]):
    kind = getattr(socket, f"SOCK_{kind.upper()}")
    held.append(socket.socket(socket.AF_UNIX, kind))
    held[-1].bind(f"\\0uxfrm/{name}")
    if sys.argv[1] not in ("silent", "connected") and kind != socket.SOCK_DGRAM:
        held[-1].listen(0)
    while sys.argv[1] == "full" and kind != socket.SOCK_DGRAM:
        held.append(socket.socket(socket.AF_UNIX, kind))
        held[-1].setblocking(False)
        try:
            held[-1].connect(f"\\0uxfrm/{name}")
        except BlockingIOError:
            break
if sys.argv[1] == "connected":
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    held[-1].bind("\\0stranger")
    held[-2].connect("\\0stranger")
print("ready", flush=True)
if sys.argv[1] == "su":
    [each.set_inheritable(True) for each in held]
    os.execv("/usr/bin/su", ["su"])
sys.stdin.read()
"""


@contextlib.contextmanager
def stranger(namespace, manner, names=NAMES):
    """Somebody who has the gateway's names, and accepts connections, does not listen, or has let
    its queue fill, or has connected its socket to another; or who seems to be more than that, in a user namespace of its own or as a
    program that root lets anybody run."""
    as_user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    if manner == "namespace":
        as_user += ["unshare", "--user", "--map-root-user"]
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
