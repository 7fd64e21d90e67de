//! Encodes messages of `nf_tables`: types, requests, and transactions.
//!
//! Numbers in attributes are big-endian (`include/uapi/linux/netfilter/nfnetlink.h`,
//! `nf_tables.h`). Encoding never fails.

use super::model::MessageSubject;
use uxfrm_netlink_wire::{AttributeWriter, NetlinkFlags, append_message, genl::FAMILY_HEADER_LEN};

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u8 = 10;
/// `NFPROTO_INET`: both families.
const INET: u8 = 1;

/// `NFT_MSG_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NewTable = 0,
    GetTable = 1,
    DeleteTable = 2,
    NewChain = 3,
    NewRule = 6,
    GetRule = 7,
    DeleteRule = 8,
    NewSet = 9,
    GetSet = 10,
    DeleteSet = 11,
    NewElements = 12,
    DeleteElements = 14,
    GetGeneration = 16,
    NewObject = 18,
    GetObject = 19,
}

/// A request outside any transaction.
pub(super) fn question(
    kind: Kind,
    flags: NetlinkFlags,
    sequence: u32,
    attributes: impl FnOnce(&mut AttributeWriter<'_>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_message(
        &mut bytes,
        typed(kind),
        NetlinkFlags::REQUEST | flags,
        sequence,
        [INET, 0, 0, 0],
        attributes,
    );
    bytes
}

/// A transaction (`NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`).
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    begin: u32,
    /// Subject of each message between begin and end; the first has the sequence number after
    /// `begin`.
    parts: Vec<MessageSubject>,
    /// Offset of the last message.
    last: usize,
}

impl Batch {
    const BEGIN: u16 = 16;
    const END: u16 = 17;
    /// A generic header with the subsystem as its resource.
    const FOR_NFTABLES: [u8; FAMILY_HEADER_LEN] = [0, 0, 0, SUBSYSTEM];

    /// Numbers its messages from `begin`.
    pub(super) fn new(begin: u32) -> Self {
        let mut bytes = Vec::new();
        append_message(
            &mut bytes,
            Self::BEGIN,
            NetlinkFlags::REQUEST,
            begin,
            Self::FOR_NFTABLES,
            |_| {},
        );
        Self { bytes, begin, parts: Vec::new(), last: 0 }
    }

    pub(super) fn push(
        &mut self,
        part: MessageSubject,
        kind: Kind,
        flags: NetlinkFlags,
        attributes: impl FnOnce(&mut AttributeWriter<'_>),
    ) {
        self.last = self.bytes.len();
        self.parts.push(part);
        let sequence = self.last_sequence();
        let flags = NetlinkFlags::REQUEST | flags;
        append_message(&mut self.bytes, typed(kind), flags, sequence, [INET, 0, 0, 0], attributes);
    }

    /// Sequence number of the last message before the end, for which an acknowledgement is
    /// requested.
    pub(super) fn last_sequence(&self) -> u32 {
        let parts = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        self.begin.wrapping_add(parts)
    }

    /// Whether it has no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a sequence number is that of the batch's begin, which errors of the whole batch
    /// have.
    pub(super) fn begins_with(&self, sequence: u32) -> bool {
        self.begin == sequence
    }

    /// Subject of the message with a sequence number.
    pub(super) fn part(&self, sequence: u32) -> Option<MessageSubject> {
        let place = sequence.wrapping_sub(self.begin).checked_sub(1)?;
        self.parts.get(usize::try_from(place).ok()?).copied()
    }

    /// The bytes to send, with an acknowledgement requested.
    pub(super) fn finish(&mut self) -> &[u8] {
        let flags = self.last + 6;
        if self.last > 0 {
            let ack = NetlinkFlags::ACK.bits();
            let asked = u16::from_ne_bytes([self.bytes[flags], self.bytes[flags + 1]]) | ack;
            self.bytes[flags..flags + 2].copy_from_slice(&asked.to_ne_bytes());
        }
        let sequence = self.last_sequence().wrapping_add(1);
        let for_nftables = Self::FOR_NFTABLES;
        append_message(
            &mut self.bytes,
            Self::END,
            NetlinkFlags::REQUEST,
            sequence,
            for_nftables,
            |_| {},
        );
        &self.bytes
    }
}

fn typed(kind: Kind) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, kind as u8])
}

/// One expression in a rule's list (`NFTA_LIST_ELEM`, `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`).
pub(super) fn expression(
    list: &mut AttributeWriter<'_>,
    name: &str,
    data: impl FnOnce(&mut AttributeWriter<'_>),
) {
    list.nest(1, |element| {
        element.text(1, name);
        element.nest(2, data);
    });
}
