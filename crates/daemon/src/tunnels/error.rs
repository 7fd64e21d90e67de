//! Errors as clients see them: the kernel's errno, and words where the kernel has no errno for it.

use std::io;

use uxfrm_io::rtnetlink;
use uxfrm_netlink::NetlinkError;
use uxfrm_runtime as runtime;
use uxfrm_tunnel::Error;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Of a tunnel or port that can't be. Where the kernel sends an errno alone, so do we.
pub(super) fn of_tunnel(error: Error) -> NetlinkError {
    let text = match error {
        Error::TunnelExists
        | Error::NoTunnel
        | Error::PortAlready
        | Error::PortInUse
        | Error::PortMissing
        | Error::PortUnknown
        | Error::PortZero
        | Error::PortProtocol
        | Error::PortType
        | Error::PeerPort
        | Error::DeviceLocal
        | Error::PortFamily => None,
        Error::EndsFamily(_)
        | Error::Carries
        | Error::NotGre
        | Error::NoEncapLimit
        | Error::NotSit
        | Error::SixRd
        | Error::IgnoreDf
        | Error::RemoteChecksum => Some(error.to_string().into()),
    };
    NetlinkError { errno: error.errno(), text, offset: None }
}

/// Of the kernel, about what was to be opened.
pub(super) fn of_system(error: &io::Error, what: &str) -> NetlinkError {
    let errno = error.raw_os_error().unwrap_or(EIO);
    NetlinkError {
        errno,
        text: Some(format!("can't open {what}: {}", strerror(errno)).into()),
        offset: None,
    }
}

/// Of the kernel, about a socket whose failure it tells its own clients by errno alone.
pub(super) fn bare(error: &io::Error) -> NetlinkError {
    NetlinkError::bare(error.raw_os_error().unwrap_or(EIO))
}

/// Of the kernel, about links and routes.
pub(super) fn of_rtnetlink(error: rtnetlink::Error) -> NetlinkError {
    NetlinkError { errno: error.errno(), text: Some(error.to_string().into()), offset: None }
}

/// Of the thread that carries tunnels.
pub(super) fn of_worker(error: runtime::Error) -> NetlinkError {
    let errno = match &error {
        runtime::Error::Poll(error) | runtime::Error::Host(error) | runtime::Error::Link(error) => {
            error.raw_os_error().unwrap_or(EIO)
        }
        runtime::Error::TooManyPorts => ENOSPC,
        runtime::Error::Ended => EIO,
    };
    NetlinkError { errno, text: Some(error.to_string().into()), offset: None }
}

/// The words of a refusal, for a log or a terminal.
pub(crate) fn words(refusal: &NetlinkError) -> String {
    refusal.text.as_ref().map_or_else(|| strerror(refusal.errno), ToString::to_string)
}

fn strerror(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}
