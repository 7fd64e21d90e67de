//! Capabilities of a thread (`capabilities(7)`).

use std::io;

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

use super::{Error, ExtraRight, ThreadRole};

/// Routes, rules, devices, the packet filter and `SO_MARK`; raw sockets; ports below 1024; memory
/// that is not swapped.
const KEPT: [Capability; 4] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_IPC_LOCK,
];

/// Memory that is not swapped: all of a gateway's is, whichever thread asks for it.
const KEPT_TO_ANSWER: [Capability; 1] = [Capability::CAP_IPC_LOCK];

/// Drops all other capabilities for good, for the calling thread and what it starts.
pub(super) fn keep(role: ThreadRole, extras: &[ExtraRight]) -> Result<(), Error> {
    nix::sys::prctl::set_no_new_privs().map_err(|errno| Error::Privileges(errno.into()))?;
    let known = caps::runtime::thread_all_supported();
    let mut kept = match role {
        ThreadRole::Packets | ThreadRole::Control => CapsHashSet::from(KEPT),
        ThreadRole::Status => CapsHashSet::from(KEPT_TO_ANSWER),
    };
    kept.extend(extras.iter().map(|extra| capability(*extra, &known)));
    // A container may refuse one of these; the other one is dropped all the same.
    let outcomes = [drop_bounds(&known, &kept), drop_sets(&kept)];
    let failed = |error: CapsError| Error::Privileges(io::Error::other(error));
    outcomes.into_iter().collect::<Result<(), _>>().map_err(failed)
}

fn capability(extra: ExtraRight, known: &CapsHashSet) -> Capability {
    match extra {
        ExtraRight::BpfMaps if known.contains(&Capability::CAP_BPF) => Capability::CAP_BPF,
        // Before Linux 5.8.
        ExtraRight::BpfMaps => Capability::CAP_SYS_ADMIN,
        ExtraRight::OthersFiles => Capability::CAP_DAC_OVERRIDE,
    }
}

/// Limits what programs could gain that the thread starts.
fn drop_bounds(known: &CapsHashSet, kept: &CapsHashSet) -> Result<(), CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(());
    }
    let dropped = known.difference(kept).map(|gone| caps::drop(None, CapSet::Bounding, *gone));
    dropped.fold(Ok(()), Result::and)
}

fn drop_sets(kept: &CapsHashSet) -> Result<(), CapsError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let left: CapsHashSet = has.intersection(kept).copied().collect();
    // Kernels without ambient capabilities have nothing to clear; an ambient one is always
    // inheritable.
    let _none = caps::clear(None, CapSet::Ambient);
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)
}
