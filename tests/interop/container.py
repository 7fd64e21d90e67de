"""Runs a program as in a container whose runtime refuses it the means to confine itself:
`container.py PROGRAM ARGUMENTS`.

`landlock_create_ruleset`, `seccomp` and dropping what the bounding set has fail with EPERM, as
Docker's filters of some years have it.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_PRCTL, _SECCOMP = {"x86_64": (157, 317), "aarch64": (167, 277)}[platform.machine()]
_LANDLOCK_CREATE_RULESET = 444
_SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 22, 24, 38
_FILTER = 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
# Places in `struct seccomp_data`.
_NUMBER, _FIRST = 0, 16

PROGRAM = [
    (_LOAD, 0, 0, _NUMBER),
    (_EQUAL, 6, 0, _LANDLOCK_CREATE_RULESET),
    (_EQUAL, 5, 0, _SECCOMP),
    (_EQUAL, 0, 3, _PRCTL),
    (_LOAD, 0, 0, _FIRST),
    (_EQUAL, 2, 0, _SET_SECCOMP),
    (_EQUAL, 1, 0, _CAPBSET_DROP),
    (_RETURN, 0, 0, _ALLOW),
    (_RETURN, 0, 0, _REFUSE),
]


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in PROGRAM))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(PROGRAM), ctypes.addressof(code)))
    for arguments in [(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0)]:
        if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
