/*
 * Lets User-Mode Linux 6.1 run on CPUs with a large XSAVE area (AVX-512 with AMX). Loaded with LD_PRELOAD.
 *
 * UML saves and restores a child's floating-point state through PTRACE_SETREGSET with a buffer of a fixed size. Where
 * the CPU's XSAVE area is larger, the host kernel refuses the short buffer with EFAULT, and UML dies at its first
 * process. So read the child's whole area, lay UML's part over its head, and write the whole area back.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LARGEST_XSAVE_AREA = 64 * 1024 };

static long raw_ptrace(long request, long pid, void *address, void *data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

/* libc returns the word that the raw system call stores through its last argument. */
static long peek(long request, long pid, void *address)
{
	long word;
	if (raw_ptrace(request, pid, address, &word) < 0)
		return -1;
	errno = 0;
	return word;
}

static long set_xstate(long pid, const struct iovec *given)
{
	static char area[LARGEST_XSAVE_AREA] __attribute__((aligned(64)));
	struct iovec whole = { area, sizeof area };
	if (raw_ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &whole) < 0)
		return -1;
	memcpy(area, given->iov_base, given->iov_len < whole.iov_len ? given->iov_len : whole.iov_len);
	return raw_ptrace(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	long pid = va_arg(arguments, int);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER)
		return peek(request, pid, address);
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
		return set_xstate(pid, data);
	return raw_ptrace(request, pid, address, data);
}
