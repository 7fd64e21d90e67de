//! Calls that change namespace or user: kept connections are released, as they name another client.

use libc::{c_int, uid_t};

use crate::{connection_reuse, next};

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::setns()(descriptor, kind) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::unshare()(flags) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn setuid(user: uid_t) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::setuid()(user) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn seteuid(user: uid_t) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::seteuid()(user) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::setreuid()(real, effective) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    connection_reuse::release();
    // SAFETY: the call takes no pointers.
    unsafe { next::setresuid()(real, effective, saved) }
}
