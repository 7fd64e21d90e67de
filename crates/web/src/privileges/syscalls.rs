//! System calls, by seccomp (`seccomp(2)`): no programs, no namespaces, no other processes, no
//! kernel interfaces that servers have no use for, and no sockets but Unix and netlink ones. They
//! fail with `EPERM`; `clone3`, whose flags filters cannot see, with `ENOSYS`, so that the C
//! library starts threads by `clone`.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Never needed.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_quotactl,
    libc::SYS_vhangup,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
];

/// How older architectures make processes.
#[cfg(target_arch = "x86_64")]
const LEGACY_REFUSED: &[libc::c_long] = &[libc::SYS_fork, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_REFUSED: &[libc::c_long] = &[];

/// Flags that give a new task a namespace of its own.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Families of sockets that are opened.
const FAMILIES: [libc::c_int; 2] = [libc::AF_UNIX, libc::AF_NETLINK];

/// Has them refused in this thread and those that it starts.
pub(super) fn filter() -> Result<(), String> {
    for program in [without_clone3(), without_refused()] {
        let program = program.map_err(|error| error.to_string())?;
        seccompiler::apply_filter(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

type Built<T> = Result<T, seccompiler::BackendError>;
type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

fn without_clone3() -> Built<BpfProgram> {
    program(Rules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)
}

fn without_refused() -> Built<BpfProgram> {
    let refused = REFUSED.iter().chain(LEGACY_REFUSED);
    let mut rules: Rules = refused.map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other_families()?)?]);
    rules.insert(libc::SYS_clone, all_but_threads()?);
    program(rules, libc::EPERM)
}

fn program(refused: Rules, error: libc::c_int) -> Built<BpfProgram> {
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(refused, SeccompAction::Allow, refuse, arch)?.try_into()
}

fn other_families() -> Built<Vec<SeccompCondition>> {
    let is_not = |family| condition(SeccompCmpOp::Ne, family);
    FAMILIES.into_iter().map(is_not).collect()
}

/// Tasks that are no threads of this process, or have a namespace of their own.
fn all_but_threads() -> Built<Vec<SeccompRule>> {
    let has =
        |flag, value| SeccompRule::new(vec![condition(SeccompCmpOp::MaskedEq(bits(flag)), value)?]);
    let no_thread = [has(libc::CLONE_THREAD, 0)];
    no_thread.into_iter().chain(NAMESPACES.map(|flag| has(flag, flag))).collect()
}

/// Compares the first argument's lower half: a family, or flags.
fn condition(compare: SeccompCmpOp, value: libc::c_int) -> Built<SeccompCondition> {
    SeccompCondition::new(0, SeccompCmpArgLen::Dword, compare, bits(value))
}

fn bits(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread of the C library is made with.
    const THREAD: libc::c_int = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;

    /// What a filter says of a call on this architecture: the classic BPF that it consists of.
    fn verdict(program: &BpfProgram, call: libc::c_long, argument: libc::c_int) -> u32 {
        let [load, jump, ret, and] = [0x20, 0x15, 0x06, 0x54];
        let (mut at, mut held) = (0, 0_u32);
        loop {
            let step = &program[at];
            at += 1;
            let is_true = match step.code {
                code if code == load => {
                    held = match step.k {
                        0 => call.try_into().unwrap(),
                        4 if cfg!(target_arch = "aarch64") => 0xc000_00b7,
                        4 => 0xc000_003e,
                        16 => argument.cast_unsigned(),
                        _ => 0,
                    };
                    continue;
                }
                code if code == and => {
                    held &= step.k;
                    continue;
                }
                code if code == ret => return step.k,
                0x05 => {
                    at += usize::try_from(step.k).unwrap();
                    continue;
                }
                code if code == jump => held == step.k,
                0x25 => held > step.k,
                0x35 => held >= step.k,
                other => panic!("instruction {other:#x}"),
            };
            at += usize::from(if is_true { step.jt } else { step.jf });
        }
    }

    #[test]
    fn threads_are_made_and_nothing_else() {
        let (allow, refuse) = (0x7fff_0000, 0x0005_0000 | libc::EPERM.unsigned_abs());
        let filter = without_refused().unwrap();
        for (call, argument, expected) in [
            (libc::SYS_read, 0, allow),
            (libc::SYS_clone, THREAD, allow),
            (libc::SYS_clone, libc::SIGCHLD, refuse),
            (libc::SYS_clone, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, refuse),
            (libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, refuse),
            (libc::SYS_clone, THREAD | libc::CLONE_NEWUSER, refuse),
            (libc::SYS_clone, THREAD | libc::CLONE_NEWNET, refuse),
            (libc::SYS_unshare, libc::CLONE_NEWUSER, refuse),
            (libc::SYS_execve, 0, refuse),
            (libc::SYS_socket, libc::AF_UNIX, allow),
            (libc::SYS_socket, libc::AF_NETLINK, allow),
            (libc::SYS_socket, libc::AF_INET, refuse),
        ] {
            assert_eq!(verdict(&filter, call, argument), expected, "{call} {argument:#x}");
        }
        for call in LEGACY_REFUSED {
            assert_eq!(verdict(&filter, *call, 0), refuse, "{call}");
        }
        let absent = 0x0005_0000 | libc::ENOSYS.unsigned_abs();
        let hidden = without_clone3().unwrap();
        assert_eq!(verdict(&hidden, libc::SYS_clone3, 0), absent);
        assert_eq!(verdict(&hidden, libc::SYS_clone, THREAD), allow);
    }

    #[test]
    fn kernel_takes_the_filters_and_threads_still_begin() {
        let begun = std::thread::spawn(|| {
            filter().unwrap();
            assert!(std::process::Command::new("/bin/true").spawn().is_err());
            std::thread::spawn(|| 7).join().unwrap()
        });
        assert_eq!(begun.join().unwrap(), 7);
    }
}
