//! The model NIC against the software engine: each decrypts the other's packets, byte by byte the
//! same.

use std::num::NonZeroU32;
use std::sync::Arc;

use uxfrm_crypto::Crypter;
use uxfrm_engine::{DeviceStatus, Direction, IvPrefix, OffloadedPacket, ReceivedPacket};
use uxfrm_engine::{
    EspEncapsulator, Family, Mode, Offload, OffloadKind, OffloadOrder, OffloadTask, Sa, SaConfig,
    SaFlags, SaProgress, SaRequest, SharedSaConfig, UdpEncapKind,
};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGatewayPair, packets};

use super::*;
use crate::{Attached, Device, StateCounts};

mod any_bytes;
mod control;
mod crypto_kind;
mod faults;
mod functions;
mod limits;
mod order;
mod packet_kind;
mod replay;
mod steering;

const NIC: DeviceId = DeviceId(7);
const NOW: Moment = Moment::from_secs(1);

/// A device and its surroundings.
struct TestBed {
    nic: ModelNic,
    pool: Pool,
    now: Moment,
    queues: NicQueues,
}

impl TestBed {
    fn new(profile: &str) -> Self {
        Self::of(NicSetup::new(Profile::by_name(profile).unwrap(), NIC))
    }

    fn of(setup: NicSetup) -> Self {
        let nic = ModelNic::new(setup).unwrap();
        let queues = nic.queues();
        Self { nic, pool: Pool::new(), now: NOW, queues }
    }

    fn port(&mut self) -> FunctionPort<'_> {
        self.nic.function(FunctionId::PHYSICAL).unwrap()
    }

    fn add(&mut self, sa: SaConfig, kind: OffloadKind, direction: Direction) -> Handle {
        match self.port().add_state(&offloaded(sa, kind, direction), NOW) {
            Ok(Attached::Device(handle)) => {
                self.port().set_iv_prefix(handle, prefix());
                self.opened(handle)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Activates an SA from its first number on.
    fn opened(&mut self, handle: Handle) -> Handle {
        self.port().open_state(handle, &SaProgress::default());
        handle
    }

    /// Adds the SA that sends from left to right.
    fn add_sending(&mut self, wrapping: &IpsecSetup, kind: OffloadKind) -> Handle {
        self.add(wrapping.sa(PairDirection::LeftToRight, FIRST_SPI), kind, Direction::Out)
    }

    /// Adds the SA that receives the left one's packets.
    fn add_receiving(&mut self, wrapping: &IpsecSetup, kind: OffloadKind) -> Handle {
        self.add(wrapping.sa(PairDirection::LeftToRight, FIRST_SPI), kind, Direction::In)
    }

    fn transmit(&mut self, handed: Vec<OffloadedPacket>) -> Vec<PacketBuf> {
        let (mut handed, mut wire) = (handed, Batch::new());
        self.nic.transmit(&mut handed, self.now, &mut self.pool, &mut wire);
        assert!(handed.is_empty());
        self.assert_accounts();
        wire.drain().collect()
    }

    fn protect(&mut self, handle: Handle, plain: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let handover = OffloadOrder { device: NIC, handle, task: OffloadTask::Protect };
        let handed = |packet| OffloadedPacket { packet, handover };
        self.transmit(plain.into_iter().map(handed).collect())
    }

    fn receive(&mut self, packets: Vec<PacketBuf>) -> Vec<ReceivedPacket> {
        let mut batch: Batch = packets.into_iter().collect();
        self.nic.receive(&mut batch, self.now, &mut self.pool, &mut self.queues);
        assert!(batch.is_empty());
        self.assert_accounts();
        self.queues.drain().collect()
    }

    fn counts(&mut self, handle: Handle) -> StateCounts {
        self.port().update_stats(handle).unwrap()
    }

    fn events(&mut self) -> Vec<NicEvent> {
        let mut events = Vec::new();
        self.port().take_events(&mut events);
        events
    }

    /// Every packet is out, held or dropped under one reason.
    fn assert_accounts(&self) {
        let (outward, inward) = (self.nic.outward(), self.nic.inward());
        for traffic in [outward, inward] {
            assert_eq!(traffic.received, traffic.sent + traffic.dropped + traffic.held);
        }
        assert_eq!(self.nic.drops().total(), outward.dropped + inward.dropped);
    }
}

fn offloaded(mut sa: SaConfig, kind: OffloadKind, direction: Direction) -> SaConfig {
    sa.offload = Some(Offload { kind, device: "nic0".into(), direction });
    sa
}

/// All encapsulations that a device supports.
fn wrappings() -> Vec<IpsecSetup> {
    use Family::{V4, V6};
    let mut all = Vec::new();
    for (mode, inner, outer) in [
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V6, V4),
        (Mode::Tunnel, V4, V6),
        (Mode::Tunnel, V6, V6),
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
    ] {
        for encap in std::iter::once(None).chain(UdpEncapKind::processed().map(Some)) {
            for flags in [SaFlags::empty(), SaFlags::ESN] {
                let settings = IpsecSetup::tunnel4().settings;
                let base = IpsecSetup::new(mode, inner, outer);
                all.push(IpsecSetup { encap, flags, settings, ..base });
            }
        }
    }
    all
}

/// Datagrams of these payload lengths between a wrapping's hosts, IPv4 ones with DF (so that outer
/// ids are 0).
fn datagrams(wrapping: &IpsecSetup, lengths: &[usize]) -> Vec<PacketBuf> {
    let (source, destination) = wrapping.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let datagram = |len: &usize| {
        let payload: Vec<u8> = (0..=250).cycle().take(*len).collect();
        let packet = packets::udp(&end(source, 7), &end(destination, 9), &payload);
        if source.is_ipv4() { packets::dont_fragment(packet) } else { packet }
    };
    lengths.iter().map(datagram).collect()
}

fn bytes_of(packets: &[PacketBuf]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| packet.bytes().to_vec()).collect()
}

fn copies(packets: &[PacketBuf]) -> Vec<PacketBuf> {
    let copy = |packet: &PacketBuf| {
        let mut copy = PacketBuf::from_slice(packet.bytes());
        copy.inherit(packet);
        copy
    };
    packets.iter().map(copy).collect()
}

/// IV prefix of all SAs.
fn prefix() -> IvPrefix {
    IvPrefix::new(0, NonZeroU32::MIN)
}

/// Two gateways whose SAs have that prefix.
fn pair_of(wrapping: &IpsecSetup) -> TestGatewayPair {
    let pair = TestGatewayPair::new(wrapping);
    for gateway in [&pair.left, &pair.right] {
        gateway.database.current().sad.iter().for_each(|sa| sa.set_iv_prefix(prefix()));
    }
    pair
}

/// Creates ESP with any number, or kind *crypto* packets of the engine.
struct Sender {
    encapsulation: EspEncapsulator,
    crypter: Crypter,
}

impl Sender {
    fn new(sa: &SaConfig) -> Self {
        let words = SharedSaConfig::of(sa, Backend::Auto);
        let sa = Sa::new(sa, Arc::new(words), NOW);
        sa.set_iv_prefix(prefix());
        Self {
            encapsulation: EspEncapsulator::new(&sa, 64).unwrap(),
            crypter: Crypter::new().unwrap(),
        }
    }

    /// An encapsulated, unencrypted packet; and the range of ESP.
    fn frame(&self, plain: &PacketBuf, sequence: u64) -> (PacketBuf, std::ops::Range<usize>) {
        let measured = self.encapsulation.measure(plain.bytes()).unwrap();
        let behind = measured.total() - measured.before() - plain.len();
        let plain = copies(std::slice::from_ref(plain)).remove(0);
        let mut frame =
            segment::with_room(plain, measured.before(), behind, &mut Pool::new()).unwrap();
        let esp = self.encapsulation.wrap(&measured, frame.bytes_mut(), sequence, 0);
        (frame, esp)
    }

    fn esp(&mut self, plain: &PacketBuf, sequence: u64) -> PacketBuf {
        use uxfrm_crypto::{Iv, SealJob, SeqHigh};
        let (mut frame, esp) = self.frame(plain, sequence);
        let sa = self.encapsulation.sa();
        let high = match sa.extended() {
            true => SeqHigh::Esn(u32::try_from(sequence >> 32).unwrap()),
            false => SeqHigh::None,
        };
        let iv = Iv::Counter(sa.iv_counter(sequence));
        let job = SealJob::in_place(sa.key(), high, iv, &mut frame.bytes_mut()[esp]);
        self.crypter.seal(&mut [job]);
        let measured = self.encapsulation.measure(plain.bytes()).unwrap();
        self.encapsulation.finish(&measured, frame.bytes_mut());
        frame
    }
}
