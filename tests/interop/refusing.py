"""A kernel that refuses transactions of nf_tables, mostly for want of memory, or with `-DOLD`
tables with an owner: a library in front of the gateway's `send`.

Both ends share a page of a file, as a gateway that is up opens no others: whether to refuse, how
many kinds of messages and which, and how often it did.
"""

import struct
import subprocess

NEW_RULE, DELETE_RULE = 6, 8
PAGE, KINDS, TALLY = 4096, 16, 32

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct { char refuses, count, kinds[30]; _Atomic long tally; } volatile *page;

__attribute__((constructor)) static void share(void) {
    int file = open(WHERE "/page", O_RDWR | O_CLOEXEC);
    void *shared = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    page = shared;
    close(file);
}

static int is_meant(volatile const char *wanted, long length, const char *bytes, size_t size) {
    if (length == 0) return 1;
    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= size;) {
        const struct nlmsghdr *header = (const void *)(bytes + at);
        for (long each = 0; each < length; each++)
            if (header->nlmsg_type >> 8 == 10 && (header->nlmsg_type & 255) == wanted[each]) return 1;
        at += NLMSG_ALIGN(header->nlmsg_len);
    }
    return 0;
}

#ifdef OLD
/* Before Linux 6.9 no table can be one socket's and stay when that is gone. */
static int wants_owner(const char *bytes, size_t size) {
    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= size;) {
        const struct nlmsghdr *header = (const void *)(bytes + at);
        if (header->nlmsg_type == 10 << 8) {
            size_t place = at + 20, end = at + header->nlmsg_len;
            while (place + sizeof(struct nlattr) <= end) {
                const struct nlattr *attribute = (const void *)(bytes + place);
                if (attribute->nla_type == 2 && bytes[place + 7] & 2) return 1;
                place += NLMSG_ALIGN(attribute->nla_len);
            }
        }
        at += NLMSG_ALIGN(header->nlmsg_len);
    }
    return 0;
}
#endif

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
#ifdef OLD
    if (wants_owner(bytes, size)) {
        errno = EOPNOTSUPP;
        return -1;
    }
#endif
    if (!page->refuses || !is_meant(page->kinds, page->count, bytes, size)) return really(socket, bytes, size, flags);
    page->tally++;
    errno = WHY;
    return -1;
}
"""


class Refusing:
    """Made in a directory of its own; `binary` is to be run in the place of uxfrm."""

    def __init__(self, directory, uxfrm, why="ENOMEM", *words):
        self._page = directory / "page"
        self._page.write_bytes(bytes(PAGE))
        library = directory / "refusing.so"
        compiler = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f'-DWHERE="{directory}"', f"-DWHY={why}", *words, "-xc", "-", "-o", library]
        subprocess.run(compiler, input=SOURCE, text=True, check=True)
        self.binary = directory / "uxfrm"
        self.binary.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {uxfrm} "$@"\n')
        self.binary.chmod(0o755)

    def refuse(self, *kinds):
        """From now on: transactions with a message of these kinds, or all."""
        self._write(1, kinds)

    def relent(self):
        self._write(0, ())

    def count(self):
        return struct.unpack_from("q", self._page.read_bytes(), TALLY)[0]

    def _write(self, refuses, kinds):
        assert len(kinds) <= KINDS
        with open(self._page, "r+b") as page:
            page.write(bytes([refuses, len(kinds), *kinds]))
