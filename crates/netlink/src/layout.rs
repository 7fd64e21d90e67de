//! Structures of `include/uapi/linux/xfrm.h` in the 64-bit layout. Padding is a field; we write 0.
#![expect(
    missing_debug_implementations,
    reason = "the marker types of zerocopy's derives have none"
)]

use zerocopy::{
    FromBytes, Immutable, IntoBytes,
    byteorder::{BE, U16, U32},
};

use crate::address::RawAddress;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident[$len:literal] { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        #[expect(missing_docs, reason = "the fields are those of the kernel's header, by plainer names")]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $len);
    )*};
}

layouts! {
    /// `struct xfrm_selector`
    RawSelector[56] {
        destination: RawAddress,
        source: RawAddress,
        destination_port: U16<BE>,
        destination_port_mask: U16<BE>,
        source_port: U16<BE>,
        source_port_mask: U16<BE>,
        family: u16,
        destination_len: u8,
        source_len: u8,
        protocol: u8,
        pad: [u8; 3],
        ifindex: u32,
        user: u32,
    }
    /// `struct xfrm_id`
    RawId[24] {
        destination: RawAddress,
        spi: U32<BE>,
        protocol: u8,
        pad: [u8; 3],
    }
    /// `struct xfrm_lifetime_cfg`
    RawLimits[64] {
        soft_bytes: u64,
        hard_bytes: u64,
        soft_packets: u64,
        hard_packets: u64,
        soft_added: u64,
        hard_added: u64,
        soft_used: u64,
        hard_used: u64,
    }
    /// `struct xfrm_lifetime_cur`; times are seconds since 1970, 0 is never.
    RawUsage[32] {
        bytes: u64,
        packets: u64,
        added: u64,
        used: u64,
    }
    /// `struct xfrm_usersa_info`
    RawSa[224] {
        selector: RawSelector,
        id: RawId,
        source: RawAddress,
        limits: RawLimits,
        usage: RawUsage,
        replay_window_failures: u32,
        replay_failures: u32,
        integrity_failures: u32,
        seq: u32,
        reqid: u32,
        family: u16,
        mode: u8,
        replay_window: u8,
        flags: u8,
        pad: [u8; 7],
    }
    /// `struct xfrm_usersa_id`
    RawSaId[24] {
        destination: RawAddress,
        spi: U32<BE>,
        family: u16,
        protocol: u8,
        pad: u8,
    }
    /// `struct xfrm_userspi_info`
    RawSpiRequest[232] {
        sa: RawSa,
        min: u32,
        max: u32,
    }
    /// `struct xfrm_user_expire`
    RawExpire[232] {
        sa: RawSa,
        hard: u8,
        pad: [u8; 7],
    }
    /// `struct xfrm_aevent_id`
    RawAevent[48] {
        id: RawSaId,
        source: RawAddress,
        flags: u32,
        reqid: u32,
    }
    /// `struct xfrm_userpolicy_info`
    RawPolicy[168] {
        selector: RawSelector,
        limits: RawLimits,
        usage: RawUsage,
        priority: u32,
        index: u32,
        direction: u8,
        action: u8,
        flags: u8,
        share: u8,
        pad: u32,
    }
    /// `struct xfrm_userpolicy_id`
    RawPolicyId[64] {
        selector: RawSelector,
        index: u32,
        direction: u8,
        pad: [u8; 3],
    }
    /// `struct xfrm_user_polexpire`
    RawPolicyExpire[176] {
        policy: RawPolicy,
        hard: u8,
        pad: [u8; 7],
    }
    /// `struct xfrm_user_tmpl`
    RawTemplate[64] {
        id: RawId,
        family: u16,
        pad: u16,
        source: RawAddress,
        reqid: u32,
        mode: u8,
        share: u8,
        optional: u8,
        pad2: u8,
        auth_algorithms: u32,
        encryption_algorithms: u32,
        compression_algorithms: u32,
    }
    /// `struct xfrm_user_acquire`
    RawAcquire[280] {
        id: RawId,
        source: RawAddress,
        selector: RawSelector,
        policy: RawPolicy,
        auth_algorithms: u32,
        encryption_algorithms: u32,
        compression_algorithms: u32,
        seq: u32,
    }
    /// `struct xfrm_user_report`
    RawReport[60] {
        protocol: u8,
        pad: [u8; 3],
        selector: RawSelector,
    }
    /// `struct xfrm_user_mapping`
    RawMapping[64] {
        id: RawSaId,
        reqid: u32,
        old_source: RawAddress,
        new_source: RawAddress,
        old_source_port: U16<BE>,
        new_source_port: U16<BE>,
    }
    /// `struct xfrm_user_migrate`
    RawMigration[76] {
        old_destination: RawAddress,
        old_source: RawAddress,
        new_destination: RawAddress,
        new_source: RawAddress,
        protocol: u8,
        mode: u8,
        reserved: u16,
        reqid: u32,
        old_family: u16,
        new_family: u16,
    }
    /// `struct xfrm_user_migrate_state` (Linux 7.2)
    RawStateMigration[132] {
        id: RawSaId,
        new_destination: RawAddress,
        new_source: RawAddress,
        old_mark: RawMark,
        new_selector: RawSelector,
        new_reqid: u32,
        flags: u32,
        new_family: u16,
        reserved: u16,
    }
    /// `struct xfrm_userpolicy_default`
    RawDefaults[3] {
        inbound: u8,
        forward: u8,
        outbound: u8,
    }
    /// `struct xfrm_encap_tmpl`
    RawEncap[24] {
        kind: u16,
        source_port: U16<BE>,
        destination_port: U16<BE>,
        pad: u16,
        original_address: RawAddress,
    }
    /// `struct xfrm_mark`
    RawMark[8] {
        value: u32,
        mask: u32,
    }
    /// `struct xfrm_replay_state`
    RawReplay[12] {
        sent: u32,
        received: u32,
        bitmap: u32,
    }
    /// `struct xfrm_replay_state_esn` without its bitmap
    RawReplayEsn[24] {
        words: u32,
        sent: u32,
        received: u32,
        sent_high: u32,
        received_high: u32,
        window: u32,
    }
    /// `struct xfrm_algo` without its key
    RawAlgorithm[68] {
        name: [u8; 64],
        key_bits: u32,
    }
    /// `struct xfrm_algo_aead`, `struct xfrm_algo_auth` without keys; last is the length of the ICV
    RawSizedAlgorithm[72] {
        name: [u8; 64],
        key_bits: u32,
        icv_bits: u32,
    }
    /// `struct xfrm_userpolicy_type`
    RawPolicyType[6] {
        kind: u8,
        pad: [u8; 5],
    }
    /// `struct xfrm_address_filter`
    RawAddressFilter[36] {
        source: RawAddress,
        destination: RawAddress,
        family: u16,
        source_len: u8,
        destination_len: u8,
    }
    /// `struct xfrm_user_offload`
    RawOffload[8] {
        ifindex: u32,
        flags: u8,
        pad: [u8; 3],
    }
    /// `struct xfrm_user_sec_ctx` without its text
    RawSecurityContext[8] {
        len: u16,
        kind: u16,
        algorithm: u8,
        domain: u8,
        text_len: u16,
    }
    /// `struct xfrmu_spdinfo`
    RawSpdInfo[24] {
        inbound: u32,
        outbound: u32,
        forward: u32,
        socket_inbound: u32,
        socket_outbound: u32,
        socket_forward: u32,
    }
    /// `struct xfrmu_sadhinfo`, `struct xfrmu_spdhinfo`
    RawHashInfo[8] {
        buckets: u32,
        most: u32,
    }
    /// `struct xfrmu_spdhthresh`
    RawThreshold[2] {
        local: u8,
        remote: u8,
    }
}
