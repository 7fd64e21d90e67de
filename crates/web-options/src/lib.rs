//! The command line of `uxfrm web`: for `uxfrm-web`, which serves, and for `uxfrm`, which starts it
//! and has its help, completion and manual page. Nothing here serves, so `uxfrm` links no HTTP.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// Options of `uxfrm web`.
#[derive(Args, Clone, Debug, Default)]
pub struct WebOptions {
    /// Listen on this Unix socket (mode 0660). Without, and without --listen and a socket of
    /// systemd's: /run/uxfrm/web.sock.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The group whose members may connect to the Unix socket, by name or number.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,

    /// Listen on a loopback address, as 127.0.0.1:8080; needs --token-file.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "token_file")]
    pub listen: Option<SocketAddr>,

    /// A file with the token that clients have to know: one line of 32 characters or more, its mode
    /// 0600 or 0640.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// A name that clients may know this server by beside localhost, as that of a proxy in front of
    /// it, with the port if they say one. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// The user to become where root starts it; without, uxfrm-web.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}
