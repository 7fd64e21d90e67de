//! Drop reasons of a device: one closed list for counters and tests.

use std::collections::BTreeMap;

use uxfrm_engine::DropReason;

macro_rules! nic_drops {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal;)+) => {
        /// Why a device dropped a packet. Each dropped packet is counted under exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum NicDrop {
            $($(#[doc = $doc])+ $name,)+
        }

        impl NicDrop {
            /// All reasons, in order of declaration; `reason as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in metrics, logs and `ethtool -S`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// When it counts: plain text of one or more sentences, in Markdown. Cause and next
            /// step are those of [`NicDrop::reason`].
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}

nic_drops! {
    /// Transmit: the link is down, or went down before the packet was on the wire.
    TxLinkDown => "tx_link_down";
    /// Transmit: the handle is unknown (or was deleted; packets in flight then still leave),
    /// larval, or of another kind or direction.
    TxNoState => "tx_no_state";
    /// Transmit: handed over for another device, or for another function's state.
    TxWrongDevice => "tx_wrong_device";
    /// Transmit: the bytes are no IP packet, no ESP packet of the state, or a header lies about its
    /// length.
    TxMalformed => "tx_malformed";
    /// Transmit: what the device said it can't do: a super-packet, an open checksum, a fragment,
    /// IPv4 options, IPv6 extension headers.
    TxUnsupported => "tx_unsupported";
    /// Transmit: a policy on the device says block.
    TxPolicyBlock => "tx_policy_block";
    /// Transmit: the state passed its hard limit.
    TxHardLimit => "tx_hard_limit";
    /// Transmit: the sequence number would wrap.
    TxSequence => "tx_sequence";
    /// Transmit: the next sequence numbers are not reserved yet.
    TxSequenceReserve => "tx_sequence_reserve";
    /// Transmit: longer than an IP packet can be once it is wrapped.
    TxNoRoom => "tx_no_room";
    /// Transmit: could not be encrypted.
    TxCrypto => "tx_crypto";
    /// Receive: the link is down.
    RxLinkDown => "rx_link_down";
    /// Receive: a frame that is cut short, or has no IP packet in it; only where the device takes
    /// Ethernet headers off.
    RxNotIp => "rx_not_ip";
    /// Receive: ESP shorter than header, IV, trailer and ICV need, or not a multiple of the block.
    RxRunt => "rx_runt";
    /// Receive: the number was received before.
    RxReplay => "rx_replay";
    /// Receive: older than the window.
    RxTooOld => "rx_too_old";
    /// Receive: the number may have been received before a restart.
    RxBeforeRestart => "rx_before_restart";
    /// Receive: an authentic number above what is reserved; the next ones pass as soon as more is.
    RxReplayReserve => "rx_replay_reserve";
    /// Receive: number 0, which no packet has.
    RxNoNumber => "rx_no_number";
    /// Receive: the ICV is wrong.
    RxAuthFailed => "rx_auth_failed";
    /// Receive: padding that is none, or of the wrong bytes.
    RxTrailer => "rx_trailer";
    /// Receive: a dummy packet (RFC 4303 §2.6), discarded as it should be.
    RxDummy => "rx_dummy";
    /// Receive: what was inside is no IP packet.
    RxInner => "rx_inner";
    /// Receive: what was inside is not what the state's mode carries.
    RxMode => "rx_mode";
    /// Receive: congestion outside that the packet inside can't carry on (RFC 6040 §4.2).
    RxEcn => "rx_ecn";
    /// Receive: the state passed its hard limit.
    RxHardLimit => "rx_hard_limit";
    /// Receive: a policy on the device says block.
    RxPolicyBlock => "rx_policy_block";
    /// Receive: decrypted by a state that the policy on the device does not want.
    RxPolicyMismatch => "rx_policy_mismatch";
    /// Receive: a rule of the flow director says so (`action -1`).
    RxFlowRule => "rx_flow_rule";
}

impl NicDrop {
    /// The reason for an error of the engine's ESP code.
    #[expect(clippy::wildcard_enum_match_arm, reason = "ESP around single packets has no others")]
    pub(super) const fn of(reason: DropReason) -> Self {
        match reason {
            DropReason::OutModeMismatch => Self::TxNoState,
            DropReason::OutNoRoom => Self::TxNoRoom,
            DropReason::OutSequenceOverflow => Self::TxSequence,
            DropReason::OutSequenceReserve => Self::TxSequenceReserve,
            DropReason::InRunt | DropReason::InMalformed => Self::RxRunt,
            DropReason::InReplay => Self::RxReplay,
            DropReason::InTooOld => Self::RxTooOld,
            DropReason::InBeforeRestart => Self::RxBeforeRestart,
            DropReason::InReplayReserve => Self::RxReplayReserve,
            DropReason::InNoNumber => Self::RxNoNumber,
            DropReason::InPadding => Self::RxTrailer,
            DropReason::InDummy => Self::RxDummy,
            DropReason::InInnerMalformed => Self::RxInner,
            DropReason::InModeMismatch => Self::RxMode,
            DropReason::InEcn => Self::RxEcn,
            _ => Self::TxMalformed,
        }
    }

    /// The gateway's drop reason: the one of its own engine for the same cause.
    #[must_use]
    pub const fn reason(self) -> DropReason {
        match self {
            Self::TxLinkDown | Self::TxNoState => DropReason::OutDeviceGone,
            Self::TxWrongDevice => DropReason::OutDeviceMismatch,
            Self::TxMalformed => DropReason::OutMalformed,
            Self::TxUnsupported => DropReason::OutDeviceUnfit,
            Self::TxPolicyBlock => DropReason::OutPolicyBlock,
            Self::TxHardLimit => DropReason::OutStateExpired,
            Self::TxSequence => DropReason::OutSequenceOverflow,
            Self::TxSequenceReserve => DropReason::OutSequenceReserve,
            Self::TxNoRoom => DropReason::OutNoRoom,
            Self::TxCrypto => DropReason::OutCrypto,
            Self::RxLinkDown => DropReason::InDeviceDown,
            Self::RxNotIp => DropReason::InMalformed,
            Self::RxRunt => DropReason::InRunt,
            Self::RxReplay => DropReason::InReplay,
            Self::RxTooOld => DropReason::InTooOld,
            Self::RxBeforeRestart => DropReason::InBeforeRestart,
            Self::RxReplayReserve => DropReason::InReplayReserve,
            Self::RxNoNumber => DropReason::InNoNumber,
            Self::RxAuthFailed => DropReason::InForged,
            Self::RxTrailer => DropReason::InPadding,
            Self::RxDummy => DropReason::InDummy,
            Self::RxInner => DropReason::InInnerMalformed,
            Self::RxMode => DropReason::InModeMismatch,
            Self::RxEcn => DropReason::InEcn,
            Self::RxHardLimit => DropReason::InStateExpired,
            Self::RxPolicyBlock => DropReason::InPolicyBlock,
            Self::RxPolicyMismatch => DropReason::InOtherState,
            Self::RxFlowRule => DropReason::InFlowRule,
        }
    }
}

/// Drop counts by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicDrops([u64; NicDrop::ALL.len()]);

impl NicDrops {
    /// Count of one reason.
    #[must_use]
    pub const fn of(&self, reason: NicDrop) -> u64 {
        self.0[reason as usize]
    }

    /// Counts above zero.
    pub fn iter(&self) -> impl Iterator<Item = (NicDrop, u64)> {
        let all = NicDrop::ALL.iter().map(|reason| (*reason, self.of(*reason)));
        all.filter(|(_, count)| *count > 0)
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds another device's counts.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count += more);
        self
    }

    /// Adds another process' counts by name, ignoring unknown names.
    pub fn add_named(&mut self, counts: &BTreeMap<String, u64>) {
        for reason in NicDrop::ALL {
            self.add(*reason, counts.get(reason.as_str()).copied().unwrap_or(0));
        }
    }

    pub(super) fn add(&mut self, reason: NicDrop, packets: u64) {
        self.0[reason as usize] += packets;
    }
}

impl Default for NicDrops {
    fn default() -> Self {
        Self([0; NicDrop::ALL.len()])
    }
}
