"""Runs inside a guest and does what the test outside asks: in User-Mode Linux through files in
/run/channel, in QEMU by the port that is named on the command line, a line each.

A request, or the file NUMBER.request, is a JSON object with one key; its answer, or NUMBER.reply,
is `{"status", "output"}`:

    {"run": SCRIPT}                              sh -c SCRIPT
    {"transfer": [SOURCE, DESTINATION, LENGTH]}  one TCP connection to the echo service at DESTINATION
    {"stop": null}                               ends the agent, and with it the guest

Not by packets, so that no XFRM policy under test can cut the test off from its guest. The agent
also runs the echo service, and holds port 4500 as an IKE daemon would: Linux takes ESP in UDP only
from a socket with UDP_ENCAP set.
"""

import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time
import traceback

import echo

CHANNEL = pathlib.Path("/run/channel")
POLL_SECONDS = 0.01
UDP_ENCAP = 100  # linux/udp.h
UDP_ENCAP_ESPINUDP = 2
XFRM_POLICY_OPTION = {socket.AF_INET: (socket.IPPROTO_IP, 17), socket.AF_INET6: (socket.IPPROTO_IPV6, 35)}
POLICY_IN, POLICY_OUT = 0, 1


def bypass_policy(family, direction):
    """A struct xfrm_userpolicy_info (linux/xfrm.h) that allows everything: its family and direction
    are all it says."""
    return struct.pack("=40xH118xB7x", family, direction)


def encapsulation_sockets():
    """UDP sockets that take ESP. The bypass is needed where a policy covers the outer packets too:
    transport mode."""
    for family in (socket.AF_INET, socket.AF_INET6):
        holder = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.bind(("", 4500))
        for direction in (POLICY_IN, POLICY_OUT):
            holder.setsockopt(*XFRM_POLICY_OPTION[family], bypass_policy(family, direction))
        holder.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, UDP_ENCAP_ESPINUDP)
        yield holder


def run(script):
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def transfer(arguments):
    try:
        echo.transfer(*arguments)
    except (OSError, AssertionError):
        return 1, traceback.format_exc()
    return 0, ""


def answered(request):
    """Whether there are to be more requests, and the answer."""
    ((verb, argument),) = json.loads(request).items()
    status, output = {"run": run, "transfer": transfer, "stop": lambda _: (0, "")}[verb](argument)
    return verb != "stop", json.dumps({"status": status, "output": output})


def serve_files():
    number, more = 0, True
    while more:
        path = CHANNEL / f"{number}.request"
        if not path.exists():
            time.sleep(POLL_SECONDS)
            continue
        more, reply = answered(path.read_text())
        unfinished = CHANNEL / f"{number}.unfinished"
        unfinished.write_text(reply)
        os.rename(unfinished, CHANNEL / f"{number}.reply")
        number += 1


def serve_port(port):
    more = True
    while more:
        if not (request := port.readline()):  # nobody holds the other end yet
            time.sleep(POLL_SECONDS)
            continue
        more, reply = answered(request)
        port.write(f"{reply}\n".encode())


def main(ports):
    holders = list(encapsulation_sockets())
    server = echo.EchoServer()
    if ports:
        with open(ports[0], "r+b", buffering=0) as port:
            serve_port(port)
    else:
        serve_files()
    server.close()
    for holder in holders:
        holder.close()


if __name__ == "__main__":
    main(sys.argv[1:])
