//! The command line of `uxfrm fleet`: for `uxfrm-fleet`, which does it, and for `uxfrm`, which
//! starts that and has its help, completion and manual pages. Nothing here speaks to etcd, so
//! `uxfrm` links no HTTP.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `uxfrm fleet`: which configuration, and what to do.
#[derive(Args, Clone, Debug)]
pub struct FleetOptions {
    /// The configuration of this gateway in its fleet.
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/uxfrm/fleet.toml")]
    pub config: PathBuf,

    /// What to do.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// What `uxfrm fleet` does.
#[derive(Clone, Debug, Subcommand)]
pub enum FleetCommand {
    /// Make a fleet: its key, its configuration, and its first record in etcd.
    ///
    /// The key and the configuration then go to each gateway, and `uxfrm fleet join` is run there.
    Init(FleetInitOptions),
    /// Add this host to the fleet, by a `[gateway]` section in the configuration.
    ///
    /// The gateway joins when `uxfrm fleet run` (uxfrm-fleet.service) starts.
    Join(FleetJoinOptions),
    /// Remove a gateway from the fleet for good, once its agent has ended.
    ///
    /// What it accepted stays in etcd, so that no other accepts it again. Its name is used up.
    Leave(FleetGatewayOptions),
    /// Run this gateway's agent in the foreground; SIGTERM ends it, SIGHUP reads the key file anew.
    ///
    /// It tells the running gateway which tunnels it has and with which sequence numbers. Where it
    /// ends, the gateway goes on for three seconds.
    Run,
    /// Make the fleet's tunnels what a file says.
    ///
    /// All of the file is checked, and what changes is printed, before anything is written. It
    /// takes effect by one transaction or not at all. Exit code: 0 done or nothing to do, 1 it was
    /// refused.
    Apply(FleetApplyOptions),
    /// Print the file that the fleet's tunnels would be applied from.
    Get(FleetGetOptions),
    /// Print the fleet's gateways, what they have, and how etcd is.
    ///
    /// Exit code: 0 all is well, 1 a gateway is down or an endpoint of etcd is, 2 etcd does not
    /// answer.
    Status(FleetStatusOptions),
    /// Have a gateway give its tunnels to the others, before maintenance. Nothing is lost.
    Drain(FleetGatewayOptions),
    /// Have a drained gateway take tunnels again.
    Undrain(FleetGatewayOptions),
    /// Print changes of the fleet as they come: gateways, votes, tunnels.
    Watch,
    /// Change the fleet's key, in four steps, without a gap.
    ///
    /// `add` draws a second key into the key file; copy the file to all gateways and reload their
    /// agents. `use` has the new one seal; copy and reload again. `reseal` seals all records in
    /// etcd anew. `drop` removes the old key from the file; copy and reload a last time.
    RotateKey(FleetRotateOptions),
}

/// Options of `uxfrm fleet init`.
#[derive(Args, Clone, Debug)]
pub struct FleetInitOptions {
    /// The fleet's name: letters a to z, digits, `-`, `_` and `.`
    #[arg(value_name = "FLEET")]
    pub fleet: String,

    /// An endpoint of etcd, as http://10.0.0.1:2379 or https://…; once for each node.
    #[arg(long, value_name = "URL", required = true)]
    pub etcd: Vec<String>,

    /// Who signed etcd's certificates, as PEM; for https.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Our certificate, as PEM, where etcd asks for one.
    #[arg(long, value_name = "FILE", requires = "certificate_key")]
    pub certificate: Option<PathBuf>,

    /// The key of our certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub certificate_key: Option<PathBuf>,

    /// Our user at etcd.
    #[arg(long, value_name = "USER", requires = "password_file")]
    pub user: Option<String>,

    /// A file with the user's password, mode 0600.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,

    /// Where the fleet's key is to be, mode 0600.
    #[arg(long, value_name = "FILE", default_value = "/etc/uxfrm/fleet.key")]
    pub key_file: PathBuf,
}

/// Options of `uxfrm fleet join`.
#[derive(Args, Clone, Debug)]
pub struct FleetJoinOptions {
    /// The gateway's name; no other ever has had it.
    #[arg(value_name = "GATEWAY")]
    pub gateway: String,

    /// Where it takes heartbeats of the other gateways, by UDP, as 10.0.0.1:4600.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub address: SocketAddr,

    /// The pool of gateways among which its tunnels move.
    #[arg(long, value_name = "POOL", default_value = "default")]
    pub pool: String,

    /// Its share of the tunnels, compared to others'.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub weight: u32,

    /// How many tunnels it takes at the most.
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    pub capacity: u32,

    /// What its agent must not forget.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/uxfrm-fleet")]
    pub state: PathBuf,

    /// The gateway's control socket, where its configuration says one.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// A gateway of the fleet.
#[derive(Args, Clone, Debug)]
pub struct FleetGatewayOptions {
    /// Its name; without one, this host's.
    #[arg(value_name = "GATEWAY")]
    pub gateway: Option<String>,
}

/// Options of `uxfrm fleet apply`.
#[derive(Args, Clone, Debug)]
pub struct FleetApplyOptions {
    /// Pools and tunnels, in TOML and lines of `ip xfrm`; `-` for the standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Print what would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `uxfrm fleet get`.
#[derive(Args, Clone, Debug)]
pub struct FleetGetOptions {
    /// With keys, so that it can be applied; without, `KEY` stands in their places.
    #[arg(long)]
    pub keys: bool,
}

/// Options of `uxfrm fleet status`.
#[derive(Args, Clone, Debug)]
pub struct FleetStatusOptions {
    /// As JSON.
    #[arg(short, long)]
    pub json: bool,
}

/// Options of `uxfrm fleet rotate-key`.
#[derive(Args, Clone, Debug)]
pub struct FleetRotateOptions {
    /// Which step.
    #[arg(value_enum, value_name = "STEP")]
    pub step: RotateStep,
}

/// A step of a change of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RotateStep {
    /// A new key opens, beside the one that seals.
    Add,
    /// The new one seals, the old one opens.
    Use,
    /// All records in etcd are sealed by the new one.
    Reseal,
    /// The old one goes.
    Drop,
}
