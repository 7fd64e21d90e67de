//! Why a packet went no further: one closed list for counters, logs, traces and tests.

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
        /// Why a packet was dropped. Each packet that is dropped is counted under exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All of them, in order of declaration; `reason as usize` is the place in it.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in metrics, logs and traces.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The line of `/proc/net/xfrm_stat` that counts it; `None` where the kernel counts it elsewhere or not at all.
            #[must_use]
            pub const fn counter(self) -> Option<XfrmCounter> {
                match self { $(Self::$name => $counter,)+ }
            }
        }
    };
}

use XfrmCounter as X;
drop_reasons! {
    /// Outbound: the bytes are no IP packet, or the header lies about its length. The kernel's IP layer counts these.
    OutMalformed => "out_malformed", Some(X::OutError);
    /// Outbound: the policy says block.
    OutPolicyBlock => "out_policy_block", Some(X::OutPolBlock);
    /// Outbound: a policy of the last run protected or blocked it, and nobody has decided anew since the
    /// start. Usual cause: the IKE daemon has not come back, or its configuration has changed. `uxfrm check
    /// CONFIG` lists what is held, `uxfrm release` lets go of it.
    OutHeld => "out_held", Some(X::OutPolBlock);
    /// Outbound: no policy matches and the default is block.
    OutDefaultBlock => "out_default_block", Some(X::OutPolBlock);
    /// Outbound: a required template has no valid state, and nobody makes one: no key manager listens, or none did in time.
    OutNoState => "out_no_state", Some(X::OutNoStates);
    /// Outbound: a required template has no valid state yet, and as many packets wait for it, or for any, as may.
    OutWaitFull => "out_wait_full", Some(X::OutNoStates);
    /// Outbound: the state passed its hard limit.
    OutStateExpired => "out_state_expired", Some(X::OutStateExpired);
    /// Outbound: the state has `dir in`.
    OutStateDirection => "out_state_direction", Some(X::OutStateDirError);
    /// Outbound: the sequence number would wrap (RFC 4303 §3.3.3).
    OutSequenceOverflow => "out_sequence_overflow", Some(X::OutStateSeqError);
    /// Outbound: the next sequence numbers are not written down as reserved yet (static keys; the disk is slow), so that a
    /// restart could use them again.
    OutSequenceReserve => "out_sequence_reserve", Some(X::OutStateSeqError);
    /// Outbound: the state's mode can't carry this packet (wrong family, transport mode to another address).
    OutModeMismatch => "out_mode_mismatch", Some(X::OutStateModeError);
    /// Outbound: the packet with DF is larger than fits; the sender is told by ICMP. The kernel counts no Xfrm line.
    OutTooBig => "out_too_big", None;
    /// Outbound: a fragment from the host whose datagram could not be put together (overlap, timeout, too many), where some policy asks for ports, in
    /// IPv6 for a protocol, or for transport mode.
    OutFragment => "out_fragment", Some(X::OutError);
    /// Outbound: no head- or tailroom, or longer than an IP packet can be after encapsulation.
    OutNoRoom => "out_no_room", Some(X::OutError);
    /// Outbound: the crypto library refused the packet.
    OutCrypto => "out_crypto", Some(X::OutStateProtoError);
    /// Outbound: the chain of states could not be built (no source address, families that don't meet).
    OutBundle => "out_bundle", Some(X::OutBundleGenError);
    /// Outbound: policy and state are not on the same device, or only one of them is on any. Linux drops such packets in
    /// `validate_xmit_xfrm` and counts them as the device's `tx_dropped`. Usual cause: a policy with `offload packet` whose state was added without; see
    /// `uxfrm xfrm state` and `uxfrm xfrm policy`.
    OutDeviceMismatch => "out_device_mismatch", Some(X::OutError);
    /// Outbound: the state's device or function is down, or lost the state (moved by MIGRATE, freed) before the packet was on the wire; see `uxfrm dev show`.
    OutDeviceGone => "out_device_gone", Some(X::OutStateInvalid);
    /// Outbound: the policy's device refuses a larval state for the state that is missing, so nobody is asked for that (`xfrm_state_find`).
    OutDeviceRefused => "out_device_refused", Some(X::OutPolError);
    /// Outbound, offload of kind packet: what devices don't take, and nobody else may do (`xfrm_dev_offload_ok`): a fragment, IPv4 options,
    /// IPv6 extension headers, several SAs, or larger than fits without forbidding fragments.
    OutDeviceUnfit => "out_device_unfit", Some(X::OutError);
    /// Outbound: a plain packet that a policy wants protected was about to leave past uxfrm, without its routes: from a socket that is bound to a device, to
    /// a broadcast address or to a link's multicast group. The kernel is told to drop it. Or an
    /// IPv6 routing header leads a plain packet on to a destination that is to be protected, or,
    /// where any is, by what the header says in a way unknown here.
    OutUnprotected => "out_unprotected", Some(X::OutError);
    /// Outbound: packets stood in the queue of the host's port, and this one was dropped so that its sender sends less. Linux counts such as drops of a
    /// queueing discipline.
    OutQueueStands => "out_queue_stands", None;
    /// Outbound: the kernel found no room in the TUN's queue: a worker did not run for too long, or the host sends more than it can take. Raise the
    /// device's `txqueuelen`, or `[runtime] workers`. Linux counts the device's `tx_dropped`. Counted once a second.
    OutPortFull => "out_port_full", None;

    /// Inbound: the bytes are no IP or UDP packet, or a header lies about its length.
    InMalformed => "in_malformed", Some(X::InHdrError);
    /// Inbound: ESP shorter than header, IV, trailer and ICV need, or not a multiple of the block.
    InRunt => "in_runt", Some(X::InHdrError);
    /// Inbound: no state for SPI, destination, protocol and mark (also SPI 0).
    InNoState => "in_no_state", Some(X::InNoStates);
    /// Inbound: the state passed its hard limit.
    InStateExpired => "in_state_expired", Some(X::InStateExpired);
    /// Inbound: the state has `dir out`.
    InStateDirection => "in_state_direction", Some(X::InStateDirError);
    /// Inbound: the state wants UDP encapsulation and the packet has none, or the other way round.
    InEncapMismatch => "in_encap_mismatch", Some(X::InStateMismatch);
    /// Inbound: sequence number already seen (RFC 4303 §3.4.3), before or after decryption.
    InReplay => "in_replay", Some(X::InStateSeqError);
    /// Inbound: sequence number older than the window, or with ESN none in 64 bits.
    /// A gateway that sends by several workers numbers in each, and one that does not run for a moment sends its numbers late: give
    /// the state a wider window (`replay-window 4096`), or the sender one worker.
    InTooOld => "in_too_old", Some(X::InStateSeqError);
    /// Inbound: the number may have been received before uxfrm started: after a crash the window begins at the edge that was reserved. It ends by
    /// itself once the peer's numbers are above; a rekey ends it at once. See `docs/sequence-numbers.md`.
    InBeforeRestart => "in_before_restart", Some(X::InStateSeqError);
    /// Inbound: an authentic number above the edge that is reserved on the disk; the next ones pass as soon as more is reserved. Usual cause: a peer
    /// that has gone far ahead, or was slow and leaps; if it goes on, a disk that takes no writes:
    /// see the log.
    InReplayReserve => "in_replay_reserve", Some(X::InStateSeqError);
    /// Inbound: sequence number 0, which no packet has. As in the kernel it counts as no failure of the state (`net/xfrm/xfrm_replay.c: xfrm_replay_check_legacy`).
    InNoNumber => "in_no_number", Some(X::InStateSeqError);
    /// Inbound: the ICV is wrong.
    InForged => "in_forged", Some(X::InStateProtoError);
    /// Inbound: a device says that the packet is not of the protocol that the state is for.
    InDeviceProtocol => "in_device_protocol", Some(X::InStateProtoError);
    /// Inbound: a device could not decrypt the packet.
    InDeviceError => "in_device_error", Some(X::InBufferError);
    /// Inbound: a device marked the packet with a state that it does not have, has no more, or has in another way, or with none where
    /// one is needed.
    InDeviceMark => "in_device_mark", Some(X::InNoStates);
    /// Inbound: ESP of a state of kind packet that its device did not decrypt. Nobody else may: the device has the replay window.
    InDeviceOnly => "in_device_only", Some(X::InStateInvalid);
    /// Inbound: the device's link is down. Not IPsec's: the kernel has no Xfrm line for it. See `uxfrm dev show`.
    InDeviceDown => "in_device_down", None;
    /// Inbound: a rule of a device's flow director says so (`action -1`); see `uxfrm dev flow DEVICE -u`.
    InFlowRule => "in_flow_rule", None;
    /// Inbound: a plain packet without a device's mark that a policy on a device wants protected. Linux lets it in.
    InDeviceUnmarked => "in_device_unmarked", Some(X::InTmplMismatch);
    /// Inbound: padding length larger than the packet, or padding of the wrong bytes.
    InPadding => "in_padding", Some(X::InStateProtoError);
    /// Inbound: next header 59, a dummy packet (RFC 4303 §2.6): discarded as it should be.
    InDummy => "in_dummy", None;
    /// Inbound: tunnel mode, and the inside is no IP packet, or transport mode and the next header can't be.
    InInnerMalformed => "in_inner_malformed", Some(X::InHdrError);
    /// Inbound: the mode of the state does not carry this next header.
    InModeMismatch => "in_mode_mismatch", Some(X::InStateModeError);
    /// Inbound: the inner packet does not fit the state's selector.
    InSelectorMismatch => "in_selector_mismatch", Some(X::InStateMismatch);
    /// Inbound: the outer header carried CE and the inner one is not ECN-capable (RFC 6040 §4.2).
    InEcn => "in_ecn", Some(X::InHdrError);
    /// Inbound: more than six SAs around one packet.
    InTooDeep => "in_too_deep", Some(X::InBufferError);
    /// Inbound: a policy matches and the SAs used are not those of its templates; also a plain packet
    /// that should have been protected, or each plain fragment of one. Usual causes: a peer without a
    /// policy `out` like ours `in`, or somebody who forges packets: see them with `tcpdump -ni DEVICE`.
    InTemplateMismatch => "in_template_mismatch", Some(X::InTmplMismatch);
    /// Inbound: the packet came through an SA and no policy matches, or nothing matches and the default is block.
    InNoPolicy => "in_no_policy", Some(X::InNoPols);
    /// Inbound: the policy says block.
    InPolicyBlock => "in_policy_block", Some(X::InPolBlock);
    /// Inbound: a fragment to this host that could not be put together with others (overlap, timeout,
    /// room used up): of an outer packet, or out of ESP. Usual causes: loss, or a peer that sends more
    /// incomplete datagrams than one SA may hold (64). Raise the path's MTU: `docs/fragments.md`.
    InFragment => "in_fragment", Some(X::InHdrError);
    /// Inbound: as `out_held`, of what came in.
    InHeld => "in_held", Some(X::InPolBlock);
    /// Inbound: a NAT keep-alive (RFC 3948 §2.3): one byte 0xff, taken in as it should be.
    InKeepalive => "in_keepalive", None;
    /// Inbound: a zero non-ESP marker (RFC 3948 §2.2) and no IKE daemon to hand it to.
    InIkeUnclaimed => "in_ike_unclaimed", None;
    /// Inbound: neither ESP nor anything that a port should have handed over.
    InUnexpected => "in_unexpected", None;
    /// Inbound: packets stood in the queue of a port towards the network, and this one, which was let in, was dropped so that its sender sends less.
    InQueueStands => "in_queue_stands", None;
    /// Inbound: the kernel found no room in the queue of a socket or ring that a worker reads: raw ESP, UDP (also a wrong checksum), `AF_XDP`, packet
    /// socket. The worker did not run for too long, or more comes than it can take: see `net.core.rmem_max` and `[runtime] workers`. Counted once a second.
    /// UDP datagrams that the kernel had joined (`UDP_GRO`), up to 64, count as one: it says no more.
    InPortFull => "in_port_full", None;

    /// Forwarded: the header is broken.
    ForwardMalformed => "forward_malformed", Some(X::FwdHdrError);
    /// Forwarded: the last hop was used up (TTL, hop limit); the sender is told. Linux counts it as `InHdrErrors` of IP.
    ForwardHops => "forward_hops", None;
    /// Forwarded: no route leads there, or one by neither port. Linux counts it as `InNoRoutes` or `OutNoRoutes` of IP.
    ForwardNoRoute => "forward_no_route", None;
    /// Forwarded: the neighbour does not answer, or as many packets wait for its answer as may. Linux counts it among a device's neighbours.
    ForwardNoNeighbour => "forward_no_neighbour", None;
    /// Forwarded: larger than the next link takes, and not to be cut; the sender is told. Linux counts it as `FragFails` of IP.
    ForwardTooBig => "forward_too_big", None;
    /// Forwarded: an ICMP error to a sender behind the wire that no policy protects: it would show what was protected on its way here.
    ForwardUnprotected => "forward_unprotected", None;
    /// Transmit: the port's queue was full or the kernel had no buffers.
    PortFull => "port_full", Some(X::OutNoQueueSpace);
    /// Transmit: larger than the link takes (`EMSGSIZE`); the path's MTU shrank under us.
    PortTooBig => "port_too_big", Some(X::OutError);
    /// Transmit: the port refused the packet.
    PortRefused => "port_refused", Some(X::OutError);
}
