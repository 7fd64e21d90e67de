//! Drops: each reason, provoked by packets through a worker, is counted, attributed and recorded.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod devices;
mod forms;
mod inbound;
#[path = "../offload/nic.rs"]
#[expect(dead_code, reason = "the tests of offload need more of it")]
mod nic;
mod outbound;
mod tallies;

use uxfrm_engine::{DropReason, DropRecord, DropSubject, DropTally, HEAD_BYTES, Reqid, Spi};
use uxfrm_testkit::{FIRST_SPI, TestGateway};

/// A gateway that has dropped packets for a reason, and what is to be known of them.
struct Provoked {
    gateway: TestGateway,
    known: Known,
}

/// What a record has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    sa: bool,
    policy: bool,
    device: bool,
    flow: bool,
    /// ESP of the packet itself, so also its number.
    number: bool,
}

/// Where a reason is raised that no packet through a worker raises.
enum Raised {
    By(Box<Provoked>),
    Elsewhere(&'static str),
}

impl Known {
    const NOTHING: Self =
        Self { sa: false, policy: false, device: false, flow: false, number: false };
    const FLOW: Self = Self { flow: true, ..Self::NOTHING };
    const FLOW_AND_POLICY: Self = Self { policy: true, ..Self::FLOW };
    const FLOW_AND_SA: Self = Self { sa: true, ..Self::FLOW };
    const ALL_PLAIN: Self = Self { sa: true, ..Self::FLOW_AND_POLICY };
    const ESP: Self = Self { number: true, ..Self::NOTHING };
    const ESP_AND_SA: Self = Self { sa: true, ..Self::ESP };
}

impl Raised {
    fn by(gateway: TestGateway, known: Known) -> Self {
        Self::By(Box::new(Provoked { gateway, known }))
    }
}

/// A new reason does not compile until it says here how it comes about.
fn provoke(reason: DropReason) -> Raised {
    use DropReason as R;
    const INLINE: &str = "runtime/src/inline/tests.rs";
    const PORTS: &str = "runtime/src/worker_loop/tests.rs, tests/interop";
    match reason {
        R::OutMalformed => outbound::malformed(),
        R::OutSuper => outbound::wrong_super_packet(),
        R::OutPolicyBlock => outbound::policy_block(),
        R::OutHeld => outbound::held(),
        R::OutDefaultBlock => outbound::default_block(),
        R::OutNoState => outbound::no_state(),
        R::OutAcquireFailed => outbound::acquire_failed(),
        R::OutPolicyGone => outbound::policy_gone(),
        R::OutWaitFull => outbound::wait_full(),
        R::OutStateExpired => outbound::state_expired(),
        R::OutStateDirection => outbound::state_direction(),
        R::OutSequenceOverflow => outbound::sequence_overflow(),
        R::OutSequenceReserve => outbound::sequence_reserve(),
        R::OutModeMismatch => outbound::mode_mismatch(),
        R::OutTooBig => outbound::too_big(),
        R::OutFragment => outbound::fragment(),
        R::OutNoRoom => outbound::no_room(),
        // No traffic makes the library refuse; seal_jobs.rs sees that what it refuses is dropped.
        R::OutCrypto => Raised::Elsewhere("datapath/outbound/seal_jobs.rs"),
        R::OutBundle => outbound::bundle(),
        R::OutDeviceMismatch => devices::mismatch(),
        R::OutDeviceGone => Raised::Elsewhere("runtime/src/worker_loop/tests.rs"),
        R::OutDeviceRefused => devices::refused(),
        R::OutDeviceUnfit => devices::unfit(),
        R::OutUnprotected => outbound::unprotected(),
        R::OutQuotesProtected => outbound::quotes_protected(),
        R::OutLoop => outbound::comes_back(),
        R::OutQueueStands | R::OutPortFull => Raised::Elsewhere(PORTS),
        R::InMalformed => inbound::malformed(),
        R::InChecksum => inbound::checksum(),
        R::InRunt => inbound::runt(),
        R::InNoState => inbound::no_state(),
        R::InStateExpired => inbound::state_expired(),
        R::InStateDirection => inbound::state_direction(),
        R::InEncapMismatch => inbound::encap_mismatch(),
        R::InReplay => inbound::replay(),
        R::InTooOld => inbound::too_old(),
        R::InBeforeRestart => inbound::before_restart(),
        R::InReplayReserve => inbound::replay_reserve(),
        R::InNoNumber => inbound::no_number(),
        R::InForged => inbound::forged(),
        R::InDeviceProtocol => devices::protocol(),
        R::InDeviceError => devices::error(),
        R::InDeviceMark => devices::wrong_mark(),
        R::InDeviceOnly => devices::only(),
        R::InDeviceDown | R::InFlowRule => Raised::Elsewhere("offload/src/nic/tests.rs"),
        R::InDeviceUnmarked => devices::unmarked(),
        R::InPadding => inbound::padding(),
        R::InDummy => inbound::dummy(),
        R::InInnerMalformed => inbound::inner_malformed(),
        R::InInnerChecksum => inbound::inner_checksum(),
        R::InModeMismatch => inbound::mode_mismatch(),
        R::InSelectorMismatch => inbound::selector_mismatch(),
        R::InEcn => inbound::ecn(),
        R::InTooDeep => inbound::too_deep(),
        R::InUnprotected => inbound::unprotected(),
        R::InOtherState => inbound::other_state(),
        R::InNoPolicy => inbound::no_policy(),
        R::InDefaultBlock => inbound::default_block(),
        R::InPolicyBlock => inbound::policy_block(),
        R::InFragment => inbound::fragment(),
        R::InHeld => inbound::held(),
        R::InKeepalive => inbound::keepalive(),
        R::InIkeUnclaimed => inbound::ike_unclaimed(),
        R::InUnexpected => Raised::Elsewhere("nowhere: it would be a fault"),
        R::InQueueStands | R::InPortFull => Raised::Elsewhere(PORTS),
        R::ForwardMalformed
        | R::ForwardMartian
        | R::ForwardSuper
        | R::ForwardHops
        | R::ForwardNoRoute
        | R::ForwardNoNeighbour
        | R::ForwardTooBig
        | R::ForwardUnprotected => Raised::Elsewhere(INLINE),
        R::PortFull | R::PortTooBig | R::PortRefused => Raised::Elsewhere(PORTS),
    }
}

#[test]
fn every_reason_is_counted_attributed_and_recorded() {
    let mut provoked = 0;
    for reason in DropReason::ALL {
        match provoke(*reason) {
            Raised::By(seen) => {
                check(*reason, *seen);
                provoked += 1;
            }
            Raised::Elsewhere(place) => assert!(!place.is_empty(), "{reason:?}"),
        }
    }
    assert_eq!(provoked, 59, "of {}", DropReason::ALL.len());
}

fn check(reason: DropReason, Provoked { mut gateway, known }: Provoked) {
    gateway.assert_packets_accounted();
    assert_eq!(gateway.reasons().iter().map(|told| told.0).collect::<Vec<_>>(), [reason]);
    assert!(!reason.cause().is_empty() && !reason.next_step().is_empty());
    let records = gateway.worker.drop_records().take();
    let record = records.last().unwrap_or_else(|| panic!("{reason:?} is not recorded"));
    let recorded: u64 = records.iter().map(|record| record.packets).sum();
    assert_eq!(recorded, gateway.drops(reason), "{reason:?}: each packet is stood for");
    check_record(reason, record, known);
    assert!(record.at <= gateway.now, "{reason:?}");
    check_subject(&gateway, record);
    check_tallies(reason, &mut gateway, record);
}

fn check_record(reason: DropReason, record: &DropRecord, known: Known) {
    assert_eq!(record.reason, reason);
    let subject = record.subject;
    let seen = Known {
        sa: subject.sa.is_some(),
        policy: subject.policy.is_some(),
        device: subject.device.is_some(),
        flow: record.flow.is_some(),
        number: record.sequence.is_some(),
    };
    assert_eq!(seen, known, "{reason:?}: {record:?}");
    assert_eq!(record.esp.is_some(), known.sa || known.number, "{reason:?}: {record:?}");
    let head = record.packet.as_ref().unwrap_or_else(|| panic!("{reason:?} has no packet"));
    assert_eq!(head.bytes.len(), head.len.min(HEAD_BYTES), "{reason:?}");
}

/// State, policy and flow fit together.
fn check_subject(gateway: &TestGateway, record: &DropRecord) {
    let snapshot = gateway.database.snapshot();
    if let Some(sa) = record.subject.sa {
        assert_eq!((sa.id.spi, sa.reqid), (Spi(FIRST_SPI), Reqid(1)), "{record:?}");
        assert_eq!(record.esp.map(|esp| esp.spi), Some(sa.id.spi), "{record:?}");
    }
    if let (Some(policy), Some(flow)) = (record.subject.policy, record.flow) {
        let entry = snapshot.spd.iter().find(|entry| entry.index() == policy).cloned();
        assert!(entry.is_some_and(|entry| entry.matches(&flow)), "{record:?}");
    }
}

/// The counts by subject have it, at least for the last packet, and add up.
fn check_tallies(reason: DropReason, gateway: &mut TestGateway, record: &DropRecord) {
    gateway.worker.refresh();
    let tallies = gateway.worker.drop_tallies().read();
    let mine = |tally: &&DropTally| tally.reason == reason;
    let known: u64 = tallies.tallies().iter().filter(mine).map(|tally| tally.packets).sum();
    assert_eq!(tallies.total(reason), gateway.drops(reason), "{reason:?}");
    assert_eq!(known + tallies.none(reason) + tallies.other(reason), tallies.total(reason));
    let is_known = record.subject != DropSubject::NOBODY;
    let has_it = tallies.tallies().iter().any(|tally| tally.subject == record.subject);
    assert_eq!(has_it, is_known, "{reason:?}: {tallies:?}");
}
