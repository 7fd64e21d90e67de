//! Options of `uxfrm capture` and `uxfrm trace`.

use std::path::PathBuf;

use clap::Args;
use uxfrm_status::{capture::PacketQuery, gateway::PeerFilter};

use super::NamespaceOptions;
use crate::why::query;

/// Options of `uxfrm capture`.
#[derive(Args, Debug)]
pub(crate) struct CaptureOptions {
    /// Capture the plain side: what is to be protected, and what was opened and checked.
    #[arg(long)]
    pub(crate) plain: bool,

    /// Capture the wire side, as it is on the network.
    #[arg(long)]
    pub(crate) wire: bool,

    /// Capture dropped packets.
    #[arg(long)]
    pub(crate) drops: bool,

    #[command(flatten)]
    pub(crate) filter: PacketFilterOptions,

    /// Write a pcapng file, mode 0600; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// End after so many packets.
    #[arg(short, long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Bytes of each packet at the most.
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub(crate) snaplen: u32,

    /// Packets a second at the most; those that are left out are counted.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,

    /// Write the keys of the states that are there now to a new file, mode 0600, as Wireshark's
    /// `esp_sa`. Whoever reads it can read all that these states carry.
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,

    /// Print a JSON object a packet, with its bytes.
    #[arg(short, long, conflicts_with = "write")]
    pub(crate) json: bool,

    /// The gateway's control socket, where it has a path (`[control] socket`): for `--keys`.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// Which packets `uxfrm capture` and `uxfrm trace` are about.
#[derive(Args, Debug)]
pub(crate) struct PacketFilterOptions {
    /// Only packets from or to this address or prefix, by their own IP header: of ESP the outer
    /// one.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) host: Option<PeerFilter>,

    /// Only packets of this IP protocol, by name or number.
    #[arg(long, value_name = "PROTO", value_parser = query::protocol)]
    pub(crate) proto: Option<u8>,

    /// Only packets from or to this port, or of this ICMP type.
    #[arg(long)]
    pub(crate) port: Option<u16>,

    /// Only packets in ESP from or to this address or prefix, and plain ones that leave or came
    /// in it.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<PeerFilter>,

    /// Only packets in ESP with this SPI, and plain ones that leave or came in it.
    #[arg(long, value_parser = query::number)]
    pub(crate) spi: Option<u32>,
}

/// Options of `uxfrm trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceOptions {
    /// How many packets.
    #[arg(value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) packets: u32,

    #[command(flatten)]
    pub(crate) filter: PacketFilterOptions,

    /// Print a JSON object a packet, with its first bytes.
    #[arg(short, long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

impl PacketFilterOptions {
    /// The same as a query.
    pub(crate) fn query(&self) -> PacketQuery {
        let Self { host, proto, port, peer, spi } = *self;
        PacketQuery { host, peer, spi, protocol: proto, port }
    }
}
