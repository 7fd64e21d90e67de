//! What this process gives up before it serves: root, capabilities, files, system calls.
//!
//! What is left: to accept on sockets that are open, to ask the gateway by a Unix socket and the
//! kernel by netlink, and to read settings of the network.

mod files;
mod syscalls;

use std::ffi::CString;

use anyhow::{Context as _, ensure};
use caps::CapSet;
use nix::sys::prctl;
use nix::unistd::{Uid, User, initgroups, setgid, setuid};

/// The user that root becomes.
const USER: &str = "uxfrm-web";

/// Files that stay open.
#[derive(Debug)]
pub struct HeldFiles {
    _settings: files::Settings,
}

/// Gives up all that serving does not need, as `user` where root starts it. To be called before
/// there are other threads, and kept.
///
/// # Errors
/// Where root can't become another, or something would be kept.
pub fn give_up(user: Option<&str>) -> anyhow::Result<HeldFiles> {
    become_user(user)?;
    prctl::set_no_new_privs().context("can't set no_new_privs")?;
    prctl::set_dumpable(false).context("can't keep out of core dumps")?;
    drop_capabilities().context("can't drop capabilities")?;
    let (settings, fenced) = files::fence();
    for (what, done) in [("files", fenced), ("system calls", syscalls::filter())] {
        if let Err(error) = done {
            tracing::warn!("it keeps more {what} than it needs: {error}");
        }
    }
    Ok(HeldFiles { _settings: settings })
}

fn become_user(user: Option<&str>) -> anyhow::Result<()> {
    if !Uid::effective().is_root() {
        let own = User::from_uid(Uid::effective())?.map(|own| own.name);
        ensure!(
            user.is_none() || own.as_deref() == user,
            "only root can become another user: leave out --user"
        );
        return Ok(());
    }
    let name = user.unwrap_or(USER);
    let found = User::from_name(name).context("can't read /etc/passwd")?;
    let found = found.with_context(|| {
        format!(
            "root does not serve, and there is no user {name}: useradd --system --user-group \
             --shell /usr/sbin/nologin {name}, or say --user"
        )
    })?;
    ensure!(!found.uid.is_root(), "{name} is root, and root does not serve: say another --user");
    let bounding = caps::read(None, CapSet::Bounding)?;
    for capability in bounding {
        // The kernel's own list may be longer than the library's.
        let _unknown = caps::drop(None, CapSet::Bounding, capability);
    }
    initgroups(&CString::new(name)?, found.gid).context("can't take the user's groups")?;
    setgid(found.gid).context("can't take the user's group")?;
    setuid(found.uid).with_context(|| format!("can't become {name}"))?;
    ensure!(setuid(Uid::from_raw(0)).is_err(), "root can be had back");
    Ok(())
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    // A kernel without ambient capabilities has none to drop.
    let _none = caps::clear(None, CapSet::Ambient);
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        // A unit's filter may refuse to set any, where there are none.
        if !caps::read(None, set)?.is_empty() {
            caps::clear(None, set)?;
        }
    }
    Ok(())
}
