//! The command line of `uxfrm web`: for `uxfrm-web`, which serves, and for `uxfrm`, which starts it
//! and has its help, completion and manual page. Nothing here serves, so `uxfrm` links no HTTP.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// Options of `uxfrm web`.
#[derive(Args, Clone, Debug)]
pub struct WebOptions {
    /// The Unix socket to listen on; with --listen, none unless this is given.
    #[arg(
        long,
        value_name = "PATH",
        default_value_if("listen", clap::builder::ArgPredicate::IsPresent, None),
        default_value = "/run/uxfrm/web.sock"
    )]
    pub socket: Option<PathBuf>,

    /// The group whose members may connect to the Unix socket, by name or number.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,

    /// Listen on a loopback address as well, as in 127.0.0.1:8080; needs --token-file.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "token_file")]
    pub listen: Option<SocketAddr>,

    /// A file with the token that each client has to know: 32 characters or more, and for others
    /// than its owner and group not to be read.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// A name that clients may know this server by beside localhost, as that of a proxy in front of
    /// it, with the port if they say one. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// The user to become when root starts it.
    #[arg(long, value_name = "USER", default_value = "uxfrm-web")]
    pub user: String,
}
