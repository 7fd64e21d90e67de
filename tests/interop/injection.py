"""System calls made by a thread of another process, as whoever breaks into it would make them:
by ptrace, on x86-64, as root."""

import contextlib
import ctypes
import os
import pathlib
import platform
import struct

SUPPORTED = platform.machine() == "x86_64"

_GETREGS, _SETREGS, _SINGLESTEP, _DETACH, _SEIZE, _INTERRUPT = 12, 13, 9, 17, 0x4206, 0x4207
_WALL = 0x40000000
_SYSCALL = b"\x0f\x05"
# Places in `struct user_regs_struct`, in words.
_REGISTERS = 27
_R10, _R9, _R8, _RAX, _RDX, _RSI, _RDI, _ORIG_RAX, _RIP, _RSP = 7, 8, 9, 10, 12, 13, 14, 15, 16, 19
_ARGUMENTS = (_RDI, _RSI, _RDX, _R10, _R8, _R9)
# Below what a thread may use beneath its stack pointer.
_BENEATH = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request, thread, data=None):
    if _libc.ptrace(request, thread, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Stopped:
    """A thread that stands still and makes the calls that it is told to."""

    def __init__(self, process, thread):
        self._thread = thread
        self._memory = pathlib.Path(f"/proc/{process}/mem")
        self._instruction = self._find_instruction(process)

    def call(self, number, *arguments):
        """What comes back: a negative errno, or not. Bytes are laid into its memory, which their
        address stands for."""
        before = self._registers()
        registers = list(before)
        place = before[_RSP] - _BENEATH
        for register, argument in zip(_ARGUMENTS, (*arguments, *[0] * 6)):
            if isinstance(argument, bytes):
                place -= len(argument) + 1
                self._write(place, argument + b"\0")
                argument = place
            registers[register] = argument % 2**64
        # No call is under way that would have to begin anew.
        registers[_RAX], registers[_ORIG_RAX], registers[_RIP] = number, 2**64 - 1, self._instruction
        self._set(registers)
        _ptrace(_SINGLESTEP, self._thread)
        self._wait()
        result = ctypes.c_int64(self._registers()[_RAX]).value
        self._set(before)
        return result

    def page(self):
        """A page of its stack."""
        return self._registers()[_RSP] & ~4095

    def _find_instruction(self, process):
        for line in pathlib.Path(f"/proc/{process}/maps").read_text().splitlines():
            if line.endswith("[vdso]"):
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                with open(self._memory, "rb", 0) as memory:
                    memory.seek(start)
                    return start + memory.read(end - start).index(_SYSCALL)
        raise AssertionError(f"process {process} has no vdso")

    def _write(self, place, text):
        with open(self._memory, "r+b", 0) as memory:
            memory.seek(place)
            memory.write(text)

    def _registers(self):
        buffer = ctypes.create_string_buffer(8 * _REGISTERS)
        _ptrace(_GETREGS, self._thread, buffer)
        return struct.unpack(f"{_REGISTERS}Q", buffer.raw)

    def _set(self, registers):
        _ptrace(_SETREGS, self._thread, ctypes.create_string_buffer(struct.pack(f"{_REGISTERS}Q", *registers)))

    def _wait(self):
        _, status = os.waitpid(self._thread, _WALL)
        assert os.WIFSTOPPED(status), f"thread {self._thread} is gone: {status:#x}"


@contextlib.contextmanager
def stopped(process, thread):
    """A thread of a process, stopped meanwhile."""
    _ptrace(_SEIZE, thread)
    _ptrace(_INTERRUPT, thread)
    os.waitpid(thread, _WALL)
    try:
        yield Stopped(process, thread)
    finally:
        _ptrace(_DETACH, thread)
