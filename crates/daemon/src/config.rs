//! The configuration file: a small TOML file that names ports, workers and batch files.
//!
//! Owns every default; `docs/example.toml` shows them all and a test keeps it true. Promises: an
//! unknown key, a value out of range or a name too long is an error that names file, line and
//! column; a [`Config`] needs no further checks.

use std::{
    io,
    num::{NonZeroU16, NonZeroU32},
    path::{Path, PathBuf},
    str,
};

use serde::Deserialize;
use toml::de::DeTable;
use uxfrm_io::text_file;

mod cache;
mod consistency;
mod device;
mod error;
mod inline;
pub(crate) mod limits;
mod names;
mod raw_keys;
mod types;

use error::RawDiagnostic;

pub use cache::Cache;
pub use device::{DeviceSettings, LinkDownSetting};
pub use error::Diagnostic;
pub use inline::{By, Inline};
pub(crate) use names::{DIVERTED, message_of_tun_name};
pub use types::{Functions, Gather, GroupId, Mtu, RoutingTable, TunName, Workers};

/// The whole file. Every section and every key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[host]`
    pub host: Host,
    /// `[inline]`
    pub inline: Option<Inline>,
    /// `[wire]`
    pub wire: Wire,
    /// `[xfrm]`
    pub xfrm: Xfrm,
    /// `[tunnel]`
    pub tunnel: TunnelSettings,
    /// `[control]`
    pub control: Control,
    /// `[status]`
    pub status: StatusSettings,
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[crypto]`
    pub crypto: Crypto,
    /// `[cache]`
    pub cache: Cache,
    /// `[[device]]`: offload devices; default none.
    pub device: Vec<DeviceSettings>,
}

/// `[host]`: how the host's own traffic is captured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Name of the TUN that is made at start and goes at the end; default `uxfrm0`.
    pub tun: TunName,
    /// MTU of the TUN: `auto`, or bytes, 1280 to 65535; default `auto`: that of the largest packet
    /// that fits into a tunnel in use, 1280 at least. Larger packets are answered by ICMP.
    pub mtu: Mtu,
    /// Whether TCP's SYNs that go into a tunnel or come out of one have their MSS lowered to what
    /// fits, for paths on which ICMP is lost; default false.
    pub clamp_mss: bool,
    /// Whether the kernel is told to drop plain packets that the policies want protected: what
    /// comes in, and what would leave past the TUN, as from a socket that is bound to a device;
    /// default `auto`.
    pub guard: Guard,
    /// What becomes of what the policies protect when the gateway ends in order; default `block`.
    pub at_exit: AtExit,
    /// What becomes at a start of what policies of programs, as an IKE daemon's, protected in the
    /// last run; default `block`.
    pub at_start: AtStart,
}

/// What becomes of what the last run protected, until policies come that decide anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtStart {
    /// It is refused, until policies of the same selectors come, or `uxfrm release` lets go of it.
    #[default]
    Block,
    /// It leaves plain where no policy of a file says otherwise.
    Open,
}

/// What becomes of protected traffic once the gateway has ended in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtExit {
    /// As after a crash: unreachable routes and the guard stay until uxfrm runs again, or
    /// `uxfrm clean` removes them.
    #[default]
    Block,
    /// The host is left as it was: what was protected leaves plain.
    Open,
}

/// The guard: a table of the kernel's packet filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Where the kernel has `nf_tables`; a warning where it has not.
    #[default]
    Auto,
    /// The gateway does not start without it.
    Require,
    /// None: somebody else keeps plain packets out.
    Off,
}

/// `[wire]`: how protected packets leave and come in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wire {
    /// What states without `encap` use; default `esp`.
    pub encapsulation: EncapsulationSetting,
    /// Local UDP ports of states with `encap espinudp`; default `[4500]`.
    pub udp_ports: Vec<NonZeroU16>,
    /// `SO_MARK` of uxfrm's own sockets: its routing rule lets packets with it pass by the TUN;
    /// default `0x75780001`.
    pub mark: NonZeroU32,
    /// Routing table for the routes into the TUN; default 30000. Not one of the system's (253 to
    /// 255).
    pub table: RoutingTable,
    /// Microseconds that packets may wait in a socket, or three times as many in the TUN, before a
    /// sender of TCP is told to send less; default 0: nobody is told.
    pub queue_delay: u32,
    /// A device whose ESP passes by `AF_XDP`, past the kernel's network stack; default none. For
    /// host mode: inline mode has `wire_by`.
    pub af_xdp: Option<TunName>,
    /// Microseconds for which devices read by `AF_XDP` gather frames while many come, up to 10000,
    /// 0 for none; default 100 where the kernel copies frames and more pass so, and where it does
    /// not what they do by themselves.
    pub gather: Option<Gather>,
}

/// What carries ESP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncapsulationSetting {
    /// Raw sockets of IP protocol 50.
    #[default]
    Esp,
}

/// `[xfrm]`: states and policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Xfrm {
    /// Batch files of `ip xfrm` lines, run in this order; default none. Relative paths are relative
    /// to the configuration file; [`Config::load`] has joined them.
    pub batch: Vec<PathBuf>,
    /// The directory with the sequence numbers that states may have used, so that a restart goes on
    /// above them; this gateway's alone. Default: systemd's `StateDirectory`, else
    /// `/var/lib/uxfrm/TUN`.
    pub sequences: Option<PathBuf>,
}

/// `[tunnel]`: tunnels and FOU receive ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelSettings {
    /// Batch files of `ip fou add` and `ip link add … type ipip|sit|gre|ip6tnl|ip6gre` lines;
    /// default none. Relative paths are relative to the configuration file; [`Config::load`] has
    /// joined them.
    pub batch: Vec<PathBuf>,
}

/// `[control]`: the socket on which programs speak `NETLINK_XFRM`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Whether there is one; default true.
    pub enabled: bool,
    /// Its path; default: an abstract name, `uxfrm/xfrm`, which each network namespace has of its
    /// own (where a stranger has it, a file of `/run/uxfrm` stands in). A relative path is relative
    /// to the configuration file; [`Config::load`] has joined them.
    pub socket: Option<PathBuf>,
    /// Seconds that a state asked for (`ACQUIRE`) or an SPI reserved (`ALLOCSPI`) waits for its
    /// keys, as the kernel's `net.core.xfrm_acq_expires`; default 30.
    pub acquire_expires: NonZeroU32,
    /// The id of a user who may use it beside root and the user that runs the gateway; default
    /// none. For a path, the directory has to let that user in; the socket (mode 0600) is that
    /// user's.
    pub user: Option<u32>,
}

/// `[status]`: who may ask what the gateway tells about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatusSettings {
    /// A group, by name or number, whose members may ask beside root and the user that runs the
    /// gateway, and may do no more; default none.
    pub group: Option<GroupId>,
}

/// `[runtime]`: threads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Threads that move packets, 1 to 256; default 1.
    pub workers: Workers,
    /// Whether each of several workers stays on a core of its own; default true. A single worker
    /// goes where the kernel puts it.
    pub pin: bool,
    /// Whether a gateway that is up keeps only the capabilities, system calls and files that it
    /// needs; default true.
    pub sandbox: bool,
}

/// `[crypto]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Crypto {
    /// Which library encrypts; default `auto`.
    pub backend: BackendSetting,
}

/// A choice of crypto library.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendSetting {
    /// The fastest that works here, for each SA.
    #[default]
    Auto,
    /// Intel's multi-buffer library; the gateway does not start where it is missing.
    IpsecMb,
    /// aws-lc-rs.
    Portable,
}

impl From<BackendSetting> for uxfrm_crypto::Backend {
    fn from(choice: BackendSetting) -> Self {
        match choice {
            BackendSetting::Auto => Self::Auto,
            BackendSetting::IpsecMb => Self::IpsecMb,
            BackendSetting::Portable => Self::Portable,
        }
    }
}

impl Default for Wire {
    fn default() -> Self {
        const IPSEC_NAT_T: NonZeroU16 = NonZeroU16::new(4500).expect("it is not zero");
        const MARK: NonZeroU32 = NonZeroU32::new(0x7578_0001).expect("it is not zero");
        Self {
            encapsulation: EncapsulationSetting::default(),
            udp_ports: vec![IPSEC_NAT_T],
            mark: MARK,
            table: RoutingTable::default(),
            queue_delay: 0,
            af_xdp: None,
            gather: None,
        }
    }
}

impl Default for Control {
    fn default() -> Self {
        const AS_IN_LINUX: NonZeroU32 = NonZeroU32::new(30).expect("it is not zero");
        Self { enabled: true, socket: None, acquire_expires: AS_IN_LINUX, user: None }
    }
}

impl Default for Runtime {
    fn default() -> Self {
        Self { workers: Workers::default(), pin: true, sandbox: true }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{source_name}: {error}")]
    Read {
        /// The path.
        source_name: String,
        /// What the system said.
        error: io::Error,
    },
    /// The text is no configuration.
    #[error("{}", .0.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n"))]
    Text(Vec<Diagnostic>),
}

/// Where the sequence numbers of the gateway with this TUN are kept, unless it is told another
/// place. Not by the configuration's name: one that was copied has the same keys.
fn state_directory(tun: &TunName) -> PathBuf {
    let systemd = std::env::var("STATE_DIRECTORY").ok();
    let first = systemd.as_deref().and_then(|paths| paths.split(':').next());
    let first = first.filter(|path| !path.is_empty());
    first.map_or_else(|| Path::new("/var/lib/uxfrm").join(gateway_name(tun)), PathBuf::from)
}

/// A gateway's name on this machine: its TUN's, and where the network namespace has a name that of
/// `ip netns`, behind it.
fn gateway_name(tun: &TunName) -> String {
    let tun = tun.as_str();
    uxfrm_io::netns::name().map_or_else(|| tun.to_owned(), |namespace| format!("{tun}@{namespace}"))
}

impl Config {
    /// Reads a configuration file and joins its relative paths with its directory.
    ///
    /// # Errors
    /// [`Error`] when the file can't be read or something in it is wrong.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let source_name = path.display().to_string();
        let bytes = text_file::read(path)
            .map_err(|error| Error::Read { source_name: source_name.clone(), error })?;
        let text = str::from_utf8(&bytes)
            .map_err(|error| Error::Text(vec![no_text(&source_name, &bytes, error)]))?;
        let mut config = Self::parse(&source_name, text)?;
        let directory = path.parent().unwrap_or_else(|| Path::new(""));
        for batch in config.xfrm.batch.iter_mut().chain(&mut config.tunnel.batch) {
            *batch = directory.join(&*batch);
        }
        for device in &mut config.device {
            device.start_at(directory);
        }
        config.control.socket = config.control.socket.take().map(|path| directory.join(path));
        let sequences = config.xfrm.sequences.take().map(|named| directory.join(named));
        config.xfrm.sequences =
            Some(sequences.unwrap_or_else(|| state_directory(&config.host.tun)));
        Ok(config)
    }

    /// Reads the text of a configuration, named `source` in errors. Paths stay as they are.
    ///
    /// # Errors
    /// [`Error::Text`]: the first syntax error; else all keys and values that are wrong; else all
    /// that contradict others.
    pub fn parse(source: &str, text: &str) -> Result<Self, Error> {
        let told = |faults: Vec<RawDiagnostic>| {
            Error::Text(faults.into_iter().map(|fault| fault.told(source, text)).collect())
        };
        // What follows a mistake of the text is seldom one of its own: a bracket that is not closed
        // has all behind it wrong.
        let document =
            DeTable::parse(text).map_err(|error| told(vec![RawDiagnostic::of_toml(&error)]))?;
        let document = document.into_inner();
        let config = raw_keys::read(document.clone()).map_err(told)?;
        let contradictions = consistency::find(&config);
        if contradictions.is_empty() {
            return Ok(config);
        }
        let mut faults: Vec<_> =
            contradictions.into_iter().map(|found| found.fault(&document)).collect();
        faults.sort();
        Err(told(faults))
    }
}

/// Where bytes end to be UTF-8.
fn no_text(source: &str, bytes: &[u8], error: str::Utf8Error) -> Diagnostic {
    let place = error.valid_up_to();
    let before = str::from_utf8(&bytes[..place]).unwrap_or_default();
    RawDiagnostic { place, message: "a byte that is no UTF-8, which TOML is written in".to_owned() }
        .told(source, before)
}

#[cfg(test)]
mod tests;
