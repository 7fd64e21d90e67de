//! Drop reasons: one closed list for counters, logs, traces and tests.

/// The 32 counters of `/proc/net/xfrm_stat`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the kernel's own names: Documentation/networking/xfrm_proc.rst")]
#[rustfmt::skip]
pub enum XfrmCounter {
    InError, InBufferError, InHdrError, InNoStates, InStateProtoError, InStateModeError, InStateSeqError,
    InStateExpired, InStateMismatch, InStateInvalid, InTmplMismatch, InNoPols, InPolBlock, InPolError,
    OutError, OutBundleGenError, OutBundleCheckError, OutNoStates, OutStateProtoError, OutStateModeError,
    OutStateSeqError, OutStateExpired, OutPolBlock, OutPolDead, OutPolError,
    FwdHdrError, OutStateInvalid, AcquireError, OutStateDirError, InStateDirError, InIptfsError, OutNoQueueSpace,
}

impl XfrmCounter {
    /// All of them, in the order of `/proc/net/xfrm_stat`.
    #[rustfmt::skip]
    pub const ALL: [Self; 32] = [
        Self::InError, Self::InBufferError, Self::InHdrError, Self::InNoStates, Self::InStateProtoError,
        Self::InStateModeError, Self::InStateSeqError, Self::InStateExpired, Self::InStateMismatch,
        Self::InStateInvalid, Self::InTmplMismatch, Self::InNoPols, Self::InPolBlock, Self::InPolError,
        Self::OutError, Self::OutBundleGenError, Self::OutBundleCheckError, Self::OutNoStates,
        Self::OutStateProtoError, Self::OutStateModeError, Self::OutStateSeqError, Self::OutStateExpired,
        Self::OutPolBlock, Self::OutPolDead, Self::OutPolError, Self::FwdHdrError, Self::OutStateInvalid,
        Self::AcquireError, Self::OutStateDirError, Self::InStateDirError, Self::InIptfsError,
        Self::OutNoQueueSpace,
    ];
}

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal, $counter:expr;)+) => {
        /// Why a packet was dropped. Each dropped packet is counted under exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All of them, in order of declaration; indexed by `reason as usize`.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in metrics, logs and traces.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The line of `/proc/net/xfrm_stat` that counts it; `None` where the kernel counts it
            /// elsewhere or not at all.
            #[must_use]
            pub const fn counter(self) -> Option<XfrmCounter> {
                match self { $(Self::$name => $counter,)+ }
            }
        }
    };
}

use XfrmCounter as X;
drop_reasons! {
    /// Outbound: the bytes are no IP packet, or the header's length is wrong. The kernel's IP layer
    /// counts these.
    OutMalformed => "out_malformed", Some(X::OutError);
    /// Outbound: the policy says block.
    OutPolicyBlock => "out_policy_block", Some(X::OutPolBlock);
    /// Outbound: a policy of the last run protected or blocked the packet, and none has replaced it
    /// since the start. Usual cause: the IKE daemon has not come back, or its configuration has
    /// changed. `uxfrm check CONFIG` lists what is held, `uxfrm release` releases it.
    OutHeld => "out_held", Some(X::OutPolBlock);
    /// Outbound: no policy matches and the default is block.
    OutDefaultBlock => "out_default_block", Some(X::OutPolBlock);
    /// Outbound: a required template has no valid state, and nobody makes one: no key manager
    /// listens, or none did in time.
    OutNoState => "out_no_state", Some(X::OutNoStates);
    /// Outbound: a required template has no valid state yet, and the acquire queue is full, for
    /// this state or in total.
    OutWaitFull => "out_wait_full", Some(X::OutNoStates);
    /// Outbound: the state passed its hard limit.
    OutStateExpired => "out_state_expired", Some(X::OutStateExpired);
    /// Outbound: the state has `dir in`.
    OutStateDirection => "out_state_direction", Some(X::OutStateDirError);
    /// Outbound: the sequence number would wrap (RFC 4303 §3.3.3).
    OutSequenceOverflow => "out_sequence_overflow", Some(X::OutStateSeqError);
    /// Outbound: the next sequence numbers are not stored as reserved yet (static keys; the disk is
    /// slow), so a restart could use them again.
    OutSequenceReserve => "out_sequence_reserve", Some(X::OutStateSeqError);
    /// Outbound: the state's mode cannot carry this packet (wrong family, transport mode to another
    /// address).
    OutModeMismatch => "out_mode_mismatch", Some(X::OutStateModeError);
    /// Outbound: the packet has DF and exceeds the MTU; the sender is told by ICMP. The kernel has
    /// no Xfrm line for it.
    OutTooBig => "out_too_big", None;
    /// Outbound: a fragment from the host whose datagram could not be reassembled (overlap,
    /// timeout, too many), where some policy selects by port, in IPv6 by protocol, or uses
    /// transport mode.
    OutFragment => "out_fragment", Some(X::OutError);
    /// Outbound: no head- or tailroom, or longer than an IP packet can be after encapsulation.
    OutNoRoom => "out_no_room", Some(X::OutError);
    /// Outbound: the crypto library refused the packet.
    OutCrypto => "out_crypto", Some(X::OutStateProtoError);
    /// Outbound: the bundle could not be built (no source address, families that do not match).
    OutBundle => "out_bundle", Some(X::OutBundleGenError);
    /// Outbound: policy and state are not on the same device, or only one of them is on any. Linux
    /// drops such packets in `validate_xmit_xfrm` and counts them as the device's `tx_dropped`.
    /// Usual cause: a policy with `offload packet` whose state was added without; see
    /// `uxfrm xfrm state` and `uxfrm xfrm policy`.
    OutDeviceMismatch => "out_device_mismatch", Some(X::OutError);
    /// Outbound: the state's device or function is down, or lost the state (moved by MIGRATE,
    /// freed) before the packet was on the wire; see `uxfrm dev show`.
    OutDeviceGone => "out_device_gone", Some(X::OutStateInvalid);
    /// Outbound: the policy's device refuses a larval state for the missing state, so no acquire is
    /// sent (`xfrm_state_find`).
    OutDeviceRefused => "out_device_refused", Some(X::OutPolError);
    /// Outbound, packet offload: devices do not take the packet, and software must not
    /// (`xfrm_dev_offload_ok`): a fragment, IPv4 options, IPv6 extension headers, several SAs, or
    /// above the MTU without DF.
    OutDeviceUnfit => "out_device_unfit", Some(X::OutError);
    /// Outbound: a plain packet that a policy protects was about to leave past uxfrm's routes: from
    /// a socket bound to a device, to a broadcast address or to a link's multicast group. The
    /// kernel is told to drop it. Or an IPv6 routing header leads a plain packet to a destination
    /// that is to be protected, or its type is unknown while any destination is.
    OutUnprotected => "out_unprotected", Some(X::OutError);
    /// Outbound: a standing queue at the host's port; this packet was dropped so that its sender
    /// slows down. Linux counts such as drops of a queueing discipline.
    OutQueueStands => "out_queue_stands", None;
    /// Outbound: the TUN's queue in the kernel was full: a worker did not run for too long, or the
    /// host sends more than it can take. Raise the device's `txqueuelen`, or `[runtime] workers`.
    /// Linux counts the device's `tx_dropped`. Counted once a second.
    OutPortFull => "out_port_full", None;

    /// Inbound: the bytes are no IP or UDP packet, or a header's length is wrong.
    InMalformed => "in_malformed", Some(X::InHdrError);
    /// Inbound: ESP shorter than header, IV, trailer and ICV, or not a multiple of the block.
    InRunt => "in_runt", Some(X::InHdrError);
    /// Inbound: no state for SPI, destination, protocol and mark (also SPI 0).
    InNoState => "in_no_state", Some(X::InNoStates);
    /// Inbound: the state passed its hard limit.
    InStateExpired => "in_state_expired", Some(X::InStateExpired);
    /// Inbound: the state has `dir out`.
    InStateDirection => "in_state_direction", Some(X::InStateDirError);
    /// Inbound: the state requires UDP encapsulation and the packet has none, or the other way
    /// round.
    InEncapMismatch => "in_encap_mismatch", Some(X::InStateMismatch);
    /// Inbound: sequence number already seen (RFC 4303 §3.4.3), before or after decryption.
    InReplay => "in_replay", Some(X::InStateSeqError);
    /// Inbound: sequence number older than the window, or with ESN none in 64 bits. A gateway that
    /// sends by several workers numbers in each, and one that does not run for a moment sends its
    /// numbers late: give the state a wider window (`replay-window 4096`), or the sender one
    /// worker.
    InTooOld => "in_too_old", Some(X::InStateSeqError);
    /// Inbound: the number may have been received before uxfrm started: after a crash the window
    /// begins at the reserved edge. Ends once the peer's numbers are above the edge; a rekey ends
    /// it at once. See `docs/sequence-numbers.md`.
    InBeforeRestart => "in_before_restart", Some(X::InStateSeqError);
    /// Inbound: an authentic number above the edge reserved on the disk; the next ones pass as soon
    /// as more is reserved. Usual cause: a peer that leaped far ahead. If it persists, the disk
    /// takes no writes: see the log.
    InReplayReserve => "in_replay_reserve", Some(X::InStateSeqError);
    /// Inbound: sequence number 0, which is never sent. As in the kernel it counts as no failure of
    /// the state (`net/xfrm/xfrm_replay.c: xfrm_replay_check_legacy`).
    InNoNumber => "in_no_number", Some(X::InStateSeqError);
    /// Inbound: the ICV is wrong.
    InForged => "in_forged", Some(X::InStateProtoError);
    /// Inbound: a device reports that the packet is not of the state's protocol.
    InDeviceProtocol => "in_device_protocol", Some(X::InStateProtoError);
    /// Inbound: a device could not decrypt the packet.
    InDeviceError => "in_device_error", Some(X::InBufferError);
    /// Inbound: a device marked the packet with a state that it does not have, has no more, or has
    /// for another kind of offload, or with none where one is needed.
    InDeviceMark => "in_device_mark", Some(X::InNoStates);
    /// Inbound: ESP of a state with packet offload that its device did not decrypt. Software must
    /// not: the device has the replay window.
    InDeviceOnly => "in_device_only", Some(X::InStateInvalid);
    /// Inbound: the device's link is down. Not about IPsec: the kernel has no Xfrm line for it. See
    /// `uxfrm dev show`.
    InDeviceDown => "in_device_down", None;
    /// Inbound: dropped by a rule of a device's flow director (`action -1`); see
    /// `uxfrm dev flow DEVICE -u`.
    InFlowRule => "in_flow_rule", None;
    /// Inbound: a plain packet without a device's mark, for a policy with packet offload. Linux
    /// lets it in.
    InDeviceUnmarked => "in_device_unmarked", Some(X::InTmplMismatch);
    /// Inbound: padding length larger than the packet, or wrong padding bytes.
    InPadding => "in_padding", Some(X::InStateProtoError);
    /// Inbound: next header 59, a dummy packet (RFC 4303 §2.6): discarded as it should be.
    InDummy => "in_dummy", None;
    /// Inbound: tunnel mode and the inner bytes are no IP packet, or transport mode and an
    /// impossible next header.
    InInnerMalformed => "in_inner_malformed", Some(X::InHdrError);
    /// Inbound: the mode of the state does not carry this next header.
    InModeMismatch => "in_mode_mismatch", Some(X::InStateModeError);
    /// Inbound: the inner packet does not fit the state's selector.
    InSelectorMismatch => "in_selector_mismatch", Some(X::InStateMismatch);
    /// Inbound: the outer header carried CE and the inner one is not ECN-capable (RFC 6040 §4.2).
    InEcn => "in_ecn", Some(X::InHdrError);
    /// Inbound: more than six SAs around one packet.
    InTooDeep => "in_too_deep", Some(X::InBufferError);
    /// Inbound: a policy matches and the SAs used are not those of its templates; also a plain
    /// packet that should have been protected, or each plain fragment of one. Usual causes: a peer
    /// without a policy `out` like ours `in`, or somebody who forges packets: see them with
    /// `tcpdump -ni DEVICE`.
    InTemplateMismatch => "in_template_mismatch", Some(X::InTmplMismatch);
    /// Inbound: the packet came through an SA and no policy matches, or nothing matches and the
    /// default is block.
    InNoPolicy => "in_no_policy", Some(X::InNoPols);
    /// Inbound: the policy says block.
    InPolicyBlock => "in_policy_block", Some(X::InPolBlock);
    /// Inbound: a fragment to this host that could not be reassembled (overlap, timeout, memory
    /// limit): of an outer packet, or out of ESP. Usual causes: loss, or a peer that sends more
    /// incomplete datagrams than one SA may hold (64). Raise the path's MTU: `docs/fragments.md`.
    InFragment => "in_fragment", Some(X::InHdrError);
    /// Inbound: like `out_held`.
    InHeld => "in_held", Some(X::InPolBlock);
    /// Inbound: a NAT keepalive (RFC 3948 §2.3): one byte 0xff, discarded as it should be.
    InKeepalive => "in_keepalive", None;
    /// Inbound: a zero non-ESP marker (RFC 3948 §2.2) and no IKE daemon to deliver it to.
    InIkeUnclaimed => "in_ike_unclaimed", None;
    /// Inbound: neither ESP nor anything that the port should have delivered.
    InUnexpected => "in_unexpected", None;
    /// Inbound: a standing queue at a port towards the network; this packet, which had passed, was
    /// dropped so that its sender slows down.
    InQueueStands => "in_queue_stands", None;
    /// Inbound: the kernel's queue of a socket or ring that a worker reads was full: raw ESP, UDP
    /// (also a wrong checksum), `AF_XDP`, packet socket. The worker did not run for too long, or
    /// more comes than it can take: see `net.core.rmem_max` and `[runtime] workers`. Counted once a
    /// second. UDP datagrams that the kernel had joined (`UDP_GRO`), up to 64, count as one: it
    /// reports no more.
    InPortFull => "in_port_full", None;

    /// Forwarded: malformed header.
    ForwardMalformed => "forward_malformed", Some(X::FwdHdrError);
    /// Forwarded: TTL or hop limit exceeded; the sender is told. Linux counts it as `InHdrErrors`
    /// of IP.
    ForwardHops => "forward_hops", None;
    /// Forwarded: no route, or a route by neither port. Linux counts it as `InNoRoutes` or
    /// `OutNoRoutes` of IP.
    ForwardNoRoute => "forward_no_route", None;
    /// Forwarded: the neighbour does not answer, or its queue is full. Linux counts it among a
    /// device's neighbours.
    ForwardNoNeighbour => "forward_no_neighbour", None;
    /// Forwarded: larger than the next link's MTU and not to be fragmented; the sender is told.
    /// Linux counts it as `FragFails` of IP.
    ForwardTooBig => "forward_too_big", None;
    /// Forwarded: an ICMP error to a sender behind the wire that no policy protects: it would
    /// disclose a packet that was protected.
    ForwardUnprotected => "forward_unprotected", None;
    /// Transmit: the port's queue was full or the kernel had no buffers.
    PortFull => "port_full", Some(X::OutNoQueueSpace);
    /// Transmit: larger than the link's MTU (`EMSGSIZE`); the path MTU has just shrunk.
    PortTooBig => "port_too_big", Some(X::OutError);
    /// Transmit: the port refused the packet.
    PortRefused => "port_refused", Some(X::OutError);
}
