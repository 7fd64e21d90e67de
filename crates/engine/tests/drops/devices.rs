//! Reasons of packets to and from devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uxfrm_engine::{
    AcquireView, DeviceMetadata, DeviceStatus, Direction, Event, KeyManagers, OffloadKind, Policy,
    ReceivedPacket, SaConfig,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::nic::{Nics, mark, offload};
use crate::outbound::datagram;
use crate::{Known, Raised};

const PACKET: OffloadKind = OffloadKind::Packet;
const CRYPTO: OffloadKind = OffloadKind::Crypto;
const WAY: PairDirection = PairDirection::LeftToRight;

/// The left gateway with a policy `out` on a device.
fn left() -> TestGateway {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    left.database.set_devices(Box::new(Nics::default()));
    let offload = offload(PACKET, "nic0", Direction::Out);
    let policy = Policy { offload, ..setup.policy(Direction::Out, WAY) };
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    left
}

fn sent(mut left: TestGateway, packet: PacketBuf, known: Known) -> Raised {
    left.outbound(vec![packet]);
    Raised::by(left, Known { device: true, ..known })
}

pub(crate) fn mismatch() -> Raised {
    let mut left = left();
    left.add_sa(IpsecSetup::tunnel4().sa(WAY, FIRST_SPI));
    sent(left, datagram(), Known::FLOW_AND_POLICY)
}

pub(crate) fn refused() -> Raised {
    let mut left = left();
    left.listen([]);
    left.outbound(vec![datagram()]);
    let [Event::Acquire { wanted, .. }] = left.events[..] else { panic!("{:?}", left.events) };
    let until = left.now.plus(Duration::from_secs(1));
    let refused = Arc::new(HashMap::from([(wanted, until)]));
    let key_managers = KeyManagers::Listening;
    left.database.set_acquires(AcquireView { key_managers, refused, ..AcquireView::default() });
    sent(left, datagram(), Known::FLOW_AND_POLICY)
}

pub(crate) fn unfit() -> Raised {
    let mut left = left();
    let offload = offload(PACKET, "nic0", Direction::Out);
    left.add_sa(SaConfig { offload, ..IpsecSetup::tunnel4().sa(WAY, FIRST_SPI) });
    let whole = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 64]);
    let fragment = packets::fragments(whole.bytes(), 48).remove(0);
    sent(left, fragment, Known::ALL_PLAIN)
}

fn state(kind: OffloadKind) -> SaConfig {
    let offload = offload(kind, "nic0", Direction::In);
    SaConfig { offload, ..IpsecSetup::tunnel4().sa(WAY, FIRST_SPI) }
}

/// The right gateway with its state on a device; in kind *packet* its policy `in`, too.
fn right(kind: OffloadKind) -> (TestGateway, Nics) {
    let setup = IpsecSetup::tunnel4();
    let (mut right, nics) = (TestGatewayPair::without_sas(&setup).right, Nics::default());
    right.database.set_devices(Box::new(nics.clone()));
    if kind == PACKET {
        let offload = offload(PACKET, "nic0", Direction::In);
        let policy = Policy { offload, ..setup.policy(Direction::In, WAY) };
        right.database.apply(right.now, |change| change.update_policy(policy)).unwrap();
    }
    right.add_sa(state(kind));
    (right, nics)
}

/// A datagram as a good peer seals it.
fn sealed() -> PacketBuf {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    left.outbound(vec![datagram()]).0.remove(0)
}

fn arrived(
    mut right: TestGateway,
    packet: PacketBuf,
    metadata: Option<DeviceMetadata>,
    known: Known,
) -> Raised {
    right.inbound_from_device(vec![ReceivedPacket { packet, metadata }]);
    Raised::by(right, Known { device: true, ..known })
}

fn with_status(status: DeviceStatus) -> Raised {
    let (right, nics) = right(CRYPTO);
    let metadata = DeviceMetadata { status, ..mark(CRYPTO, nics.handle()) };
    arrived(right, sealed(), Some(metadata), Known::ESP_AND_SA)
}

pub(crate) fn protocol() -> Raised {
    with_status(DeviceStatus::InvalidProtocol)
}

pub(crate) fn error() -> Raised {
    with_status(DeviceStatus::GenericError)
}

pub(crate) fn wrong_mark() -> Raised {
    let (right, nics) = right(PACKET);
    arrived(right, sealed(), Some(mark(CRYPTO, nics.handle())), Known::ESP_AND_SA)
}

pub(crate) fn only() -> Raised {
    let (right, _) = right(PACKET);
    arrived(right, sealed(), None, Known::ESP_AND_SA)
}

pub(crate) fn unmarked() -> Raised {
    let (right, _) = right(PACKET);
    arrived(right, datagram(), None, Known::FLOW_AND_POLICY)
}
