//! Ports and all other access to the operating system: TUN, UDP, raw ESP, pcap, memory, routes,
//! namespaces.
//!
//! All system calls of uxfrm are made here, and all `unsafe` outside the packet and crypto crates
//! lives here. A [`Port`] receives and transmits batches of buffers without blocking, without
//! allocating once it is warm, and counts every packet that it could not send. This crate knows
//! buffers, not IPsec: it uses only `uxfrm-packet`.
//!
//! | module | content |
//! | --- | --- |
//! | [`port`] | the `Port` trait, and the outcome of a batch |
//! | [`tun`] | the host side: a TUN with super-packets |
//! | [`udp`], [`raw`] | the wire side: ESP in UDP, ESP and other whole IP packets |
//! | [`packet_socket`], [`frames`] | a device past the host stack: packets with Ethernet headers |
//! | [`xdp`] | the same by `AF_XDP`, without the kernel's network stack |
//! | [`ike`] | a UDP port shared with IKE daemons |
//! | [`memory`], [`pcap`] | ports for tests, benchmarks and captures; a tap on any port |
//! | [`pcapng`] | capture files with interfaces and comments |
//! | [`segmenting_port`] | software segmentation and checksums for a port without them |
//! | [`esp_fanout`] | ESP shared among the raw sockets of several workers, by SPI |
//! | [`rtnetlink`], [`netns`] | links, addresses, routes and rules; network namespaces |
//! | [`ethtool`], [`napi`] | features of an interface; deferral of its interrupts |
//! | [`uevents`] | notice that the virtual machine was restored from a snapshot |
//! | [`nftables`] | a table of the kernel's packet filter |
//! | [`text_file`] | input files of users |
//! | [`capture`] | packets of an interface |
//! | [`icmp_echo`] | how large packets a path takes |
//! | [`icmp_sender`] | ICMP errors from an address of the host |
//! | [`poll`], [`signal`] | waiting for ports, other threads and signals |
//! | [`peer`] | who is at the other end of a UNIX socket |
//! | [`sandbox`] | capabilities, system calls and files of a running gateway |
//! | [`seccomp`] | a filter that keeps programs away from the kernel's IPsec |
//! | [`ipv6_support`] | IP versions that the kernel lacks |
//! | [`clock`], [`random`], [`affinity`], [`priority`] | time, seeds, CPU affinity, nice values |
//! | [`secret_memory`] | keys kept out of core dumps and swap |
//! | [`shared_page`] | memory shared with another process |
//! | [`fd_channel`] | descriptors passed from one process to another |
//! | [`huge_pages`] | the program's allocator: large tables in huge pages |

pub mod affinity;
pub mod capture;
pub mod clock;
mod cmsg;
pub mod esp_fanout;
pub mod ethtool;
pub mod fd_channel;
pub mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod heap;
pub mod huge_pages;
pub mod icmp_echo;
pub mod icmp_errors;
pub mod icmp_sender;
pub mod ike;
pub mod ipv6_support;
pub mod mapped_file;
mod memfd;
pub mod memory;
mod message;
mod mmsg;
pub mod napi;
pub mod netns;
pub mod nftables;
pub mod packet_socket;
pub mod pcap;
pub mod pcapng;
pub mod peer;
pub mod poll;
pub mod port;
pub mod priority;
pub mod random;
pub mod raw;
mod recv_batch_size;
pub mod rtnetlink;
pub mod sandbox;
pub mod seccomp;
pub mod secret_memory;
pub mod segmenting_port;
mod send_backoff;
pub mod shared_page;
pub mod signal;
mod socket;
pub mod state_directory;
pub mod text_file;
pub mod tun;
pub mod udp;
pub mod uevents;
mod unix_owner;
mod virtio;
pub mod xdp;

pub use esp_fanout::FanoutShare;
pub use frames::{FramePort, Framed, Frames};
pub use memory::Memory;
pub use netns::Namespace;
pub use nftables::Nftables;
pub use packet_socket::{PacketSocket, PacketSocketOptions};
pub use pcap::{Pcap, Tap};
pub use port::{Accepts, FailedEsp, PathMtu, Port, RefusedPacket, Transmitted, wire_packets};
pub use raw::{Raw, RawOptions};
pub use rtnetlink::Rtnetlink;
pub use segmenting_port::SegmentingPort;
pub use tun::{Tun, TunOptions};
pub use udp::{PerAddressSockets, Udp, UdpOptions};
pub use xdp::Xdp;
