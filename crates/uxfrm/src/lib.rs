//! An IPsec engine to embed: the Linux XFRM stack's states and policies, and ESP over batches of
//! packets, without I/O.
//!
//! The engine has no clock, thread, socket or random source. Your program passes time, randomness,
//! packets and keys as arguments, and sends, delivers and counts what comes out. So it fits under
//! any event loop, and two gateways fit in one unit test ([two_gateways.rs]). The guide is
//! `docs/embedding.md` in the repository.
//!
//! [two_gateways.rs]: https://github.com/uxfrm/uxfrm/tree/main/crates/uxfrm/examples
//!
//! # The types you need
//!
//! Five hold what you configure and what passes:
//!
//! | type | is | how many |
//! | --- | --- | --- |
//! | [`SaConfig`] | a state: SPI, addresses, [keys](SaTransform), replay window | one per SA |
//! | [`Policy`] | which packets a [`Template`] protects, which pass, which drop | any number |
//! | [`Database`] | all states and policies; publishes each change to workers | one |
//! | [`Worker`] | [encrypts](Worker::outbound) and [decrypts](Worker::inbound) | one per thread |
//! | [`Batch`] | the [packets](PacketBuf) of one call | one in, an [`Output`] out |
//!
//! The others come with them: a [`Moment`], a [`Pool`] of buffers and an [`Output`] are arguments
//! of each call; [`Settings`] and a [`Backend`] make workers and the database; [`Spi`],
//! [`KeyMaterial`], [`SaTransform`], [`Direction`], [`Prefix`] and [`Template`] are parts of states
//! and policies.
//!
//! ```
//! use uxfrm::{
//!     Backend, Batch, Database, Direction, KeyMaterial, Moment, Output, PacketBuf, Policy, Pool,
//!     Prefix, SaConfig, SaTransform, Settings, Spi, Template, Worker,
//! };
//!
//! let (left, right) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
//! let here = Prefix::new([10, 1, 0, 0].into(), 16)?;
//! let there = Prefix::new([10, 2, 0, 0].into(), 16)?;
//! let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?; // of your key exchange
//!
//! let now = Moment::from_secs(1); // of your clock
//! let mut database = Database::new(Backend::Auto, 0x5eed); // of your random source
//! database.apply(now, |change| {
//!     change.add_sa(SaConfig::esp_tunnel(left, right, Spi(0x1001), keys))?;
//!     let template = Template::esp_tunnel(left, right);
//!     change.add_policy(Policy::protect(Direction::Out, here, there, template))
//! })?;
//!
//! let mut worker = Worker::new(Settings::default(), &database.published())?;
//! let (mut pool, mut out) = (Pool::new(), Output::default());
//! # let mut plain = *b"\x45\0\0\x14\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\x0a\x02\0\x01";
//! # uxfrm::packet::ipv4::fill_checksum(&mut plain)?;
//! let mut batch: Batch = [PacketBuf::from_slice(&plain)].into_iter().collect();
//! worker.outbound(&mut batch, now, &mut pool, &mut out);
//! for packet in out.wire.drain() {
//!     assert_eq!(packet.bytes()[9], 50, "ESP in IPv4, ready to be sent");
//!     pool.give(packet);
//! }
//! # assert_eq!(worker.outward().sent, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What you give
//!
//! - **Time**: a [`Moment`] with each call, from a clock that never goes back (`CLOCK_BOOTTIME`).
//!   Call [`Database::handle_timeout`] when [`Database::poll_timeout`] says so: it enforces
//!   lifetimes.
//! - **Randomness**: the seed of [`Database::new`], new and random in each process, from which
//!   states draw their IV prefixes; [`Settings::seed`], another one in each worker.
//! - **Packets**: whole IP packets. With [`WireHeaders::UdpSocket`], ESP in UDP crosses as UDP
//!   payload with a [`UdpPath`].
//! - **Keys**: from your IKE implementation. Without states, a worker can ask for them:
//!   [`Database::set_acquires`], [`Event::Acquire`].
//! - **A call now and then**: [`Worker::refresh`] about once a second in each worker, so that
//!   deleted keys leave memory; [`Worker::settle`] when a worker is idle, so that counters are
//!   exact.
//!
//! # What you get
//!
//! - **Packets**: [`Output::wire`] to send, [`Output::host`] to deliver or to forward.
//! - **Events**: [`Output::events`], each to be given to [`Database::observe`]; soft and hard
//!   lifetimes, acquires, a peer's new address, narrow paths.
//! - **Drops**: each under one [`DropReason`] ([`Worker::drops`]), and accounts that add up:
//!   [`TrafficCounters`]. By state, policy and device: [`Worker::drop_tallies`]; samples with flow
//!   and first bytes: [`Worker::drop_records`].
//! - **NAT keepalives** to send: [`Database::take_keepalives`].
//!
//! # You store sequence numbers
//!
//! A key must never meet an IV twice, and a receiver must take no number twice. Within a process
//! the engine sees to both, for any number of workers. **Across restarts you do, if keys live
//! longer than the process.**
//!
//! | keys | what you do |
//! | --- | --- |
//! | made anew in each process (IKE) | nothing but a random seed for [`Database::new`] |
//! | the same after a restart (static keys) | store numbers, as below |
//!
//! If you do not, with static keys: peers drop what you send until your numbers pass the old ones,
//! packets received before the restart are accepted again, and an IV repeats with a chance of 1 in
//! 2^32 per earlier start. With the *same seed* after a restart it repeats for certain, which gives
//! away AES-GCM's authentication key.
//!
//! - **Sent numbers.** [`Database::track_changes`] before the first change: from then on a new
//!   state sends nothing until you write a ceiling down, durably, and then call
//!   [`Sequence::reserve`] with it; [`Database::publish`] shows the state to workers. Repeat before
//!   the ceiling is reached, else packets drop as [`DropReason::OutSequenceReserve`]. After a
//!   restart, [`Sequence::skip_to`] the stored ceiling first.
//! - **IV prefixes**, with ESN and a store of received numbers: draw one for each 2^32 numbers
//!   ([`Sa::set_iv_prefix`]) before you reserve the first of them, else the worker that sends it
//!   [panics](Sa::iv_counter).
//! - **Received numbers.** Implement [`ReplayStore`] and pass it in a [`ReplayKeeper`] to
//!   [`Database::track_changes_with`]: a state accepts nothing above an edge. Write the first one
//!   down before you publish ([`Sa::reserved_to_receive`]), and each later one before you pass it
//!   to [`ReplayWindow::reserve`]. After a restart, [`Sa::restart_at`] the stored edge.
//!
//! `docs/embedding.md` has what you send as code, `tests/restart.rs` of this crate both halves;
//! SECURITY.md has the promises that rest on it.
//!
//! # Features
//!
//! None by default: the engine alone. Items that are not at the top level are in [`engine`],
//! [`packet`] and [`crypto`].
//!
//! | feature | module |
//! | --- | --- |
//! | `netlink` | `netlink`: `NETLINK_XFRM`, a codec and a server without I/O, for IKE daemons |
//! | `xfrm` | `xfrm`: the grammar, requests and text of `ip xfrm` |
//! | `offload` | `offload`: IPsec devices, as data, and a model NIC |
//! | `tunnel` | `tunnel`: IPIP, SIT, GRE, ip6tnl, alone and in FOU and GUE |
//! | `io` | `io`: TUN, UDP, raw, packet and `AF_XDP` sockets of Linux |
//! | `runtime` | `runtime`: workers on threads, between ports |
#![forbid(unsafe_code)]

pub use uxfrm_crypto as crypto;
pub use uxfrm_engine as engine;
#[cfg(feature = "io")]
pub use uxfrm_io as io;
#[cfg(feature = "netlink")]
pub use uxfrm_netlink as netlink;
#[cfg(feature = "offload")]
pub use uxfrm_offload as offload;
pub use uxfrm_packet as packet;
#[cfg(feature = "runtime")]
pub use uxfrm_runtime as runtime;
#[cfg(feature = "tunnel")]
pub use uxfrm_tunnel as tunnel;
#[cfg(feature = "xfrm")]
pub use uxfrm_xfrm as xfrm;

#[doc(no_inline)]
pub use uxfrm_crypto::{Backend, KeyMaterial, Transform};
#[doc(no_inline)]
pub use uxfrm_engine::{
    AcquireView, Action, Database, DefaultActions, Direction, DropCounts, DropReason, Drops, Error,
    Event, Family, HostAddresses, HostPort, HostView, IvPrefix, Keepalive, KeyManagers,
    LifetimeLimits, Mark, Mode, Moment, MssClamp, Output, Policy, PolicyEntry, PolicyIndex,
    PolicyKey, PolicyName, PortMask, Prefix, PrefixError, Priority, Published, ReplayConfig,
    ReplayKeeper, ReplayStore, ReplayWindow, Reqid, Sa, SaConfig, SaFlags, SaId, SaProtocol,
    SaRequest, SaTransform, Selector, Sequence, Settings, SoftHardLimit, Spi, Template,
    TemplateLevel, TrafficCounters, Transaction, UdpEncap, UdpEncapKind, UdpSuper, WireHeaders,
    Worker,
};
#[doc(no_inline)]
pub use uxfrm_packet::{BATCH, Batch, PacketBuf, Pool, Segments, SizeClass, UdpPath};

/// The code of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
mod embedding {}
