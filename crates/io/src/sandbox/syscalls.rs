//! System call filter of a thread (`seccomp(2)`): unlisted calls fail with `EPERM`, and the kernel
//! logs them.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule,
};

use super::{Error, ExtraRight, ThreadRole};

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;
type Built<T> = Result<T, seccompiler::BackendError>;

/// Calls of packet threads: open descriptors, sockets, memory, time, each other.
const PACKETS: &[libc::c_long] = &[
    // Packets.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Sockets.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_dup,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_membarrier,
    libc::SYS_getrandom,
    // Itself.
    libc::SYS_gettid,
    libc::SYS_getpid,
    // The C library does not handle a refusal of these.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_setpriority,
    libc::SYS_getpriority,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls of the status thread: clients of an open socket, memory, time, other threads.
const STATUS: &[libc::c_long] = &[
    // Clients.
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_close,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    // Itself.
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Additional calls of the control thread: files, clients, other threads.
const CONTROL: &[libc::c_long] = &[
    // Files that Landlock allows.
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_msync,
    libc::SYS_flock,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_umask,
    libc::SYS_memfd_create,
    // Clients.
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_socketpair,
    libc::SYS_signalfd4,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_pipe2,
    libc::SYS_dup3,
    // Threads.
    libc::SYS_set_tid_address,
    libc::SYS_getrusage,
    // Needed by threads that confine themselves to packet work.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[libc::c_long] =
    &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_pause, libc::SYS_arch_prctl, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[libc::c_long] = &[];

/// Calls of older architectures that take paths.
#[cfg(target_arch = "x86_64")]
const LEGACY_FILES: &[libc::c_long] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_lchown,
    libc::SYS_chown,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_FILES: &[libc::c_long] = &[];

/// Calls that set a file's mode, and the index of that argument.
const WITH_MODE: &[(libc::c_long, u8)] = &[
    (libc::SYS_openat, 3),
    (libc::SYS_mkdirat, 2),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
];
#[cfg(target_arch = "x86_64")]
const LEGACY_WITH_MODE: &[(libc::c_long, u8)] =
    &[(libc::SYS_open, 2), (libc::SYS_mkdir, 1), (libc::SYS_chmod, 1)];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_WITH_MODE: &[(libc::c_long, u8)] = &[];
/// A file with further mode bits runs as its owner (`S_ISUID`, `S_ISGID`).
const PERMISSIONS: libc::c_int = 0o777;

/// `fcntl` commands, without those that send a signal to any process (`F_SETOWN`, `F_SETSIG`).
const FCNTLS: &[libc::c_int] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// `prctl` options of all threads: names of threads and memory, timer slack.
const PRCTLS: &[libc::c_int] =
    &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_SET_TIMERSLACK];
/// `prctl` options of threads that confine themselves.
const PRIVILEGE_PRCTLS: &[libc::c_int] = &[
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_CAP_AMBIENT,
    libc::PR_CAPBSET_READ,
    libc::PR_CAPBSET_DROP,
];

/// Allowed socket families; of IP, no TCP or other streams. No `AF_UNIX`: needed ones are open, and
/// through others the host's services would take an attacker for root (`/run/systemd/private`,
/// `/run/docker.sock`).
const FAMILIES: [libc::c_int; 2] = [libc::AF_PACKET, libc::AF_XDP];
const IP: [libc::c_int; 2] = [libc::AF_INET, libc::AF_INET6];
/// Netlink protocols needed later: for packet threads the drops of a TUN, for the control thread
/// the packet filter as well. The uevent socket is open by then: udev trusts whoever may open
/// another (`NETLINK_KOBJECT_UEVENT`).
const NETLINK: [libc::c_int; 1] = [libc::NETLINK_ROUTE];
const NETLINK_CONTROL: [libc::c_int; 2] = [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER];
const KINDS: [libc::c_int; 2] = [libc::SOCK_DGRAM, libc::SOCK_RAW];
/// `SOCK_TYPE_MASK`: the type without flags.
const KIND: libc::c_int = 0xf;

/// Forbidden `ioctl`s: faked terminal input (`TIOCSTI`, `TIOCLINUX`) and signals to any process
/// (`FIOASYNC`, `FIOSETOWN`, `SIOCSPGRP`).
const FORBIDDEN_IOCTLS: [libc::c_int; 5] = [0x5412, 0x541c, 0x5452, 0x8901, 0x8902];

/// `bpf` commands on existing maps: look up, update, delete, list.
const BPF_MAP_COMMANDS: [libc::c_int; 4] = [1, 2, 3, 4];

/// Flags that give a new task a namespace of its own.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Restricts the calling thread, and those that it starts, to the calls of its role. Needs
/// `PR_SET_NO_NEW_PRIVS`.
pub(super) fn filter(role: ThreadRole, extras: &[ExtraRight]) -> Result<(), Error> {
    if role == ThreadRole::Control {
        hide_clone3()?;
    }
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let listed = build(rules(role, extras).map_err(failed)?, refused, SeccompAction::Allow)?;
    install(&listed, libc::SECCOMP_FILTER_FLAG_LOG)
}

/// Makes `clone3`, whose flags filters cannot see, fail with `ENOSYS`, so that the C library uses
/// `clone`.
fn hide_clone3() -> Result<(), Error> {
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    install(&build(clone3, SeccompAction::Allow, absent)?, 0)
}

fn rules(role: ThreadRole, extras: &[ExtraRight]) -> Built<Rules> {
    let (listed, prctls) = match role {
        ThreadRole::Packets => ([PACKETS, LEGACY].concat(), PRCTLS.to_vec()),
        ThreadRole::Control => {
            let listed = [PACKETS, LEGACY, CONTROL, LEGACY_FILES].concat();
            (listed, [PRCTLS, PRIVILEGE_PRCTLS].concat())
        }
        ThreadRole::Status => ([STATUS, LEGACY].concat(), PRCTLS.to_vec()),
    };
    let mut rules: Rules = listed.into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_prctl, one_of(0, &prctls)?);
    if role != ThreadRole::Status {
        rules.insert(libc::SYS_socket, sockets(role)?);
        let others = FORBIDDEN_IOCTLS.map(|request| condition(1, Compare::Ne, request));
        rules.insert(libc::SYS_ioctl, vec![rule(others)?]);
    }
    rules.insert(libc::SYS_fcntl, descriptors(role)?);
    // Writable memory is never executable.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executed = Compare::MaskedEq(bits(libc::PROT_EXEC));
        rules.insert(call, vec![rule([condition(2, executed, 0)])?]);
    }
    // Only the own process, as in `abort`.
    let own = libc::c_int::try_from(std::process::id()).unwrap_or(0);
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        rules.insert(call, one_of(0, &[own])?);
    }
    if role == ThreadRole::Control {
        let extra = Compare::MaskedEq(bits(!PERMISSIONS));
        for (call, mode) in [WITH_MODE, LEGACY_WITH_MODE].concat() {
            rules.insert(call, vec![rule([condition(mode, extra.clone(), 0)])?]);
        }
        // Its own limits.
        rules.insert(libc::SYS_prlimit64, one_of(0, &[0])?);
        // Threads, but no processes.
        let thread = Compare::MaskedEq(bits(NAMESPACES | libc::CLONE_THREAD));
        let thread = condition(0, thread, libc::CLONE_THREAD);
        rules.insert(libc::SYS_clone, vec![rule([thread])?]);
        // The other filter refuses it with `ENOSYS`.
        rules.insert(libc::SYS_clone3, Vec::new());
    }
    if extras.contains(&ExtraRight::BpfMaps) {
        rules.insert(libc::SYS_bpf, one_of(0, &BPF_MAP_COMMANDS)?);
    }
    Ok(rules)
}

fn descriptors(role: ThreadRole) -> Built<Vec<SeccompRule>> {
    if role == ThreadRole::Status {
        // Builds for development look whether a descriptor that they close is open.
        return one_of(1, &[libc::F_GETFD]);
    }
    let quiet = Compare::MaskedEq(bits(libc::O_ASYNC));
    let flags = rule([condition(1, Compare::Eq, libc::F_SETFL), condition(2, quiet, 0)])?;
    Ok([one_of(1, FCNTLS)?, vec![flags]].concat())
}

fn sockets(role: ThreadRole) -> Built<Vec<SeccompRule>> {
    let kind = Compare::MaskedEq(bits(KIND));
    let of_ip = IP.into_iter().flat_map(|family| KINDS.map(|of| (family, of)));
    let of_ip = of_ip.map(|(family, of)| {
        rule([condition(0, Compare::Eq, family), condition(1, kind.clone(), of)])
    });
    let protocols = match role {
        ThreadRole::Packets | ThreadRole::Status => NETLINK.as_slice(),
        ThreadRole::Control => NETLINK_CONTROL.as_slice(),
    };
    let of_netlink = protocols.iter().map(|protocol| {
        rule([condition(0, Compare::Eq, libc::AF_NETLINK), condition(2, Compare::Eq, *protocol)])
    });
    let mut rules = one_of(0, &FAMILIES)?;
    rules.extend(of_ip.chain(of_netlink).collect::<Built<Vec<_>>>()?);
    Ok(rules)
}

/// One rule per allowed value of an argument.
fn one_of(argument: u8, values: &[libc::c_int]) -> Built<Vec<SeccompRule>> {
    values.iter().map(|value| rule([condition(argument, Compare::Eq, *value)])).collect()
}

fn rule<const N: usize>(conditions: [Built<SeccompCondition>; N]) -> Built<SeccompRule> {
    SeccompRule::new(conditions.into_iter().collect::<Built<_>>()?)
}

/// Compares an argument's lower half: all are `int`s or flags.
fn condition(argument: u8, compare: Compare, value: libc::c_int) -> Built<SeccompCondition> {
    SeccompCondition::new(argument, Width::Dword, compare, bits(value))
}

fn bits(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

fn build(rules: Rules, others: SeccompAction, listed: SeccompAction) -> Result<BpfProgram, Error> {
    let arch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, others, listed, arch).map_err(failed)?;
    filter.try_into().map_err(failed)
}

/// Before Linux 5.16 a filter enables costly Spectre mitigations for its thread unless it opts out.
fn install(program: &BpfProgram, flags: libc::c_ulong) -> Result<(), Error> {
    let wanted = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    match seccomp(program, wanted) {
        // Before Linux 4.17.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => seccomp(program, 0),
        result => result,
    }
    .map_err(failed)
}

fn seccomp(program: &BpfProgram, flags: libc::c_ulong) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = program.as_ptr().cast_mut().cast::<libc::sock_filter>();
    let program = libc::sock_fprog { len: length, filter };
    let set = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `program` points to as many instructions as it says, which the kernel copies;
    // seccompiler's are laid out as the kernel's.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, set, flags, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Calls(error.to_string())
}
