"""A kernel that refuses transactions of nf_tables, mostly for want of memory: a library in front of the gateway's `send`."""

import pathlib
import subprocess

NEW_RULE, DELETE_RULE = 6, 8

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_meant(const char *wanted, long length, const char *bytes, size_t size) {
    if (length == 0) return 1;
    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= size;) {
        const struct nlmsghdr *header = (const void *)(bytes + at);
        for (long each = 0; each < length; each++)
            if (header->nlmsg_type >> 8 == 10 && (header->nlmsg_type & 255) == wanted[each]) return 1;
        at += NLMSG_ALIGN(header->nlmsg_len);
    }
    return 0;
}

ssize_t send(int socket, const void *bytes, size_t size, int flags) {
    static ssize_t (*really)(int, const void *, size_t, int);
    if (!really) really = dlsym(RTLD_NEXT, "send");
    int protocol = 0, domain = 0;
    socklen_t length = sizeof(int);
    getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length);
    getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &length);
    const struct nlmsghdr *header = bytes;
    if (domain != AF_NETLINK || protocol != NETLINK_NETFILTER || header->nlmsg_type != 16)
        return really(socket, bytes, size, flags);
    int file = open(WHERE "/refused", O_RDONLY | O_CLOEXEC);
    if (file < 0) return really(socket, bytes, size, flags);
    char wanted[16];
    long count = read(file, wanted, sizeof wanted);
    close(file);
    if (!is_meant(wanted, count, bytes, size)) return really(socket, bytes, size, flags);
    int tally = open(WHERE "/tally", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (write(tally, ".", 1) != 1) perror("tally");
    close(tally);
    errno = WHY;
    return -1;
}
"""


class Refusing:
    """Made in a directory of its own; `binary` is to be run in the place of uxfrm."""

    def __init__(self, directory, uxfrm, why="ENOMEM"):
        self._directory = directory
        library = directory / "refusing.so"
        compiler = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f'-DWHERE="{directory}"', f"-DWHY={why}", "-xc", "-", "-o", library]
        subprocess.run(compiler, input=SOURCE, text=True, check=True)
        self.binary = directory / "uxfrm"
        self.binary.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {uxfrm} "$@"\n')
        self.binary.chmod(0o755)

    def refuse(self, *kinds):
        """From now on: transactions with a message of these kinds, or all."""
        pathlib.Path(self._directory / "refused").write_bytes(bytes(kinds))

    def relent(self):
        (self._directory / "refused").unlink()

    def count(self):
        tally = self._directory / "tally"
        return tally.stat().st_size if tally.exists() else 0
