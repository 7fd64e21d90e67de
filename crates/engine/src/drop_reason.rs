//! Drop reasons: one closed list for counters, records, logs, traces and tests.
//!
//! The list is the only place that says when a reason counts, what usually causes it and what to
//! try next. `uxfrm stat --reasons`, `uxfrm drops` and `docs/drop-reasons.md` read it.

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
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal, $counter:expr,
        $cause:literal, $next:literal;)+) => {
        /// Why a packet was dropped. Each dropped packet is counted under exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!("Usual cause: ", $cause)]
                #[doc = ""]
                #[doc = concat!("Next: ", $next)]
                $name,
            )+
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

            /// When it counts: plain text of one or more sentences, in Markdown.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }

            /// What usually causes it, in a line.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$name => $cause,)+ }
            }

            /// What to try next, in a line: mostly a command. DEVICE, PEER, SRC and DST stand for
            /// the record's.
            #[must_use]
            pub const fn next_step(self) -> &'static str {
                match self { $(Self::$name => $next,)+ }
            }
        }
    };
}

/// Reasons by the names that earlier releases gave them.
const FORMER_NAMES: [(&str, DropReason); 1] = [("in_template_mismatch", DropReason::InOtherState)];

impl DropReason {
    /// The reason of a name, also of one that earlier releases used.
    ///
    /// ```
    /// use uxfrm_engine::DropReason;
    ///
    /// assert_eq!(DropReason::named("in_replay"), Some(DropReason::InReplay));
    /// assert_eq!(DropReason::named("in_template_mismatch"), Some(DropReason::InOtherState));
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let today = Self::ALL.iter().find(|reason| reason.as_str() == name).copied();
        let former = || FORMER_NAMES.iter().find(|(former, _)| *former == name);
        today.or_else(|| former().map(|(_, reason)| *reason))
    }

    /// Whether it drops packets on their way out, before they are protected or while they are.
    #[must_use]
    pub const fn is_outbound(self) -> bool {
        (self as usize) < Self::InMalformed as usize
    }
}

use XfrmCounter as X;
drop_reasons! {
    /// Outbound: the bytes are no IP packet, the header's length is wrong, or a checksum to be
    /// filled in lies outside the packet. The kernel's IP layer counts these.
    OutMalformed => "out_malformed", Some(X::OutError),
        "A program that writes raw packets, or a fault of the sender's network driver.",
        "`uxfrm drops` shows the first bytes; `tcpdump -ni DEVICE` the sender.";
    /// Outbound: a super-packet of the host that can't be segmented: not TCP or UDP as it is
    /// marked, a fragment, or segments of 0 bytes.
    OutSuper => "out_super", Some(X::OutError),
        "The kernel joined packets in a form that uxfrm does not segment.",
        "`ethtool -K DEVICE tso off gso off` on the sender's interface, and see whether it ends.";
    /// Outbound: the policy says block.
    OutPolicyBlock => "out_policy_block", Some(X::OutPolBlock),
        "A policy `dir out action block` covers this flow, by intent or by a too wide selector.",
        "`uxfrm xfrm -s policy list dir out` and look for `action block`.";
    /// Outbound: a policy of the last run protected or blocked the packet, and none has replaced it
    /// since the start.
    OutHeld => "out_held", Some(X::OutPolBlock),
        "Who put the policy in, an IKE daemon or `ip xfrm` lines, has not done it again since.",
        "Start that daemon or script. If it runs, install its traps anew; or `uxfrm release`.";
    /// Outbound: no policy matches and the default is block.
    OutDefaultBlock => "out_default_block", Some(X::OutPolBlock),
        "The default for `out` is block, and no policy was made for this flow.",
        "`uxfrm xfrm policy getdefault`; add a policy, or set the default to accept.";
    /// Outbound: a required template has no valid state, and nobody makes one: no key manager
    /// listens, or the template asks for an SPI that another state has.
    OutNoState => "out_no_state", Some(X::OutNoStates),
        "No state fits the template (reqid, mode, address, family, mark), or no IKE daemon runs.",
        "Compare `uxfrm xfrm policy list dir out` with `uxfrm xfrm state list nokeys`.";
    /// Outbound: a required template has no valid state. Key managers were asked for one (acquire),
    /// and made none in time.
    OutAcquireFailed => "out_acquire_failed", Some(X::OutNoStates),
        "IKE does not come up: peer unreachable, credentials or proposals refused.",
        "The IKE daemon's log; `tcpdump -ni DEVICE 'udp port 500 or udp port 4500'`.";
    /// Outbound: the packet waited for a state, and meanwhile its policy was removed or changed so
    /// that it would leave in plaintext.
    OutPolicyGone => "out_policy_gone", Some(X::OutNoStates),
        "The connection was taken down while it was being set up.",
        "Nothing if it was meant to go; otherwise the IKE daemon's log.";
    /// Outbound: a required template has no valid state yet, and the acquire queue is full, for
    /// this state or in total.
    OutWaitFull => "out_wait_full", Some(X::OutNoStates),
        "IKE takes long, while the host sends more than can wait.",
        "The IKE daemon's log; `uxfrm xfrm state list nokeys` shows larval states.";
    /// Outbound: the state passed its hard limit.
    OutStateExpired => "out_state_expired", Some(X::OutStateExpired),
        "Nobody replaced the state in time: a limit on static keys, or a rekeying that fails.",
        "`uxfrm xfrm -s state list nokeys` shows limits and use; rekey, or add a new state.";
    /// Outbound: the state has `dir in`.
    OutStateDirection => "out_state_direction", Some(X::OutStateDirError),
        "The state was added with the wrong `dir`, or with source and destination swapped.",
        "`uxfrm xfrm state list nokeys`: correct the state's `dir`.";
    /// Outbound: the sequence number would wrap (RFC 4303 §3.3.3).
    OutSequenceOverflow => "out_sequence_overflow", Some(X::OutStateSeqError),
        "The state has sent 2^32 packets without `flag esn`, and was not rekeyed.",
        "Rekey or replace the state; use `flag esn` at both ends.";
    /// Outbound: the next sequence numbers are not stored as reserved yet (static keys), so a
    /// restart could use them again.
    OutSequenceReserve => "out_sequence_reserve", Some(X::OutStateSeqError),
        "The disk that stores the reserved numbers is slow, full or read-only.",
        "`journalctl -u uxfrm`; free space and speed of the state directory's disk.";
    /// Outbound: the state's mode cannot carry this packet (wrong family, a fragment or another
    /// address in transport mode).
    OutModeMismatch => "out_mode_mismatch", Some(X::OutStateModeError),
        "A transport mode policy covers traffic that is not between the two ends themselves.",
        "Use `mode tunnel` for this traffic, or narrow the policy's selector.";
    /// Outbound: the packet has DF and exceeds the MTU; the sender is told by ICMP. The kernel has
    /// no Xfrm line for it.
    OutTooBig => "out_too_big", None,
        "Normal for a flow's first packets. If it goes on, the sender gets no ICMP error.",
        "Allow ICMP to the sender, or lower its MTU: `ip route change … mtu lock N`.";
    /// Outbound: a fragment from the host whose datagram could not be reassembled (overlap,
    /// timeout, too many), where some policy selects by port, in IPv6 by protocol, or uses
    /// transport mode.
    OutFragment => "out_fragment", Some(X::OutError),
        "Some fragments of the datagram never came to the gateway, or they overlap.",
        "`docs/fragments.md`; have the application send smaller datagrams.";
    /// Outbound: no head- or tailroom, or longer than an IP packet can be after encapsulation.
    OutNoRoom => "out_no_room", Some(X::OutError),
        "A packet of nearly 64 KiB, which ESP would make larger than IP allows.",
        "Lower the sender's MTU or datagram size.";
    /// Outbound: the crypto library refused the packet.
    OutCrypto => "out_crypto", Some(X::OutStateProtoError),
        "A fault of uxfrm or of the crypto library: no traffic should cause it.",
        "`uxfrm xfrm state list nokeys` for the algorithm; report it with `uxfrm drops -j`.";
    /// Outbound: the bundle could not be built (no source address, families that do not match).
    OutBundle => "out_bundle", Some(X::OutBundleGenError),
        "The tunnel's template or state has no source address, or the peer's of the other family.",
        "`uxfrm xfrm policy list dir out`: give `tmpl src … dst …` of one family.";
    /// Outbound: policy and state are not on the same device, or only one of them is on any. Linux
    /// drops such packets in `validate_xmit_xfrm` and counts them as the device's `tx_dropped`.
    OutDeviceMismatch => "out_device_mismatch", Some(X::OutError),
        "A policy with `offload packet` whose state was added without, or the reverse.",
        "Compare `offload` in `uxfrm xfrm state list nokeys` and `uxfrm xfrm policy list`.";
    /// Outbound: the state's device or function is down, or lost the state (moved by MIGRATE,
    /// freed) before the packet was on the wire.
    OutDeviceGone => "out_device_gone", Some(X::OutStateInvalid),
        "The device's link is down, or it was removed while states were on it.",
        "`uxfrm dev show`; bring the link up, or add the state anew.";
    /// Outbound: the policy's device refuses a larval state for the missing state, so no acquire is
    /// sent (`xfrm_state_find`).
    OutDeviceRefused => "out_device_refused", Some(X::OutPolError),
        "The device takes no more states, or not of this kind.",
        "`uxfrm dev show` lists what it holds and takes; use the policy without `offload`.";
    /// Outbound, packet offload: devices do not take the packet, and software must not
    /// (`xfrm_dev_offload_ok`): a fragment, IPv4 options, IPv6 extension headers, several SAs, or
    /// above the MTU without DF.
    OutDeviceUnfit => "out_device_unfit", Some(X::OutError),
        "The flow has packets that packet offload never carries.",
        "Use `offload crypto` or none for this flow; see `docs/offload.md`.";
    /// Outbound: a plain packet that a policy protects was about to leave past uxfrm's routes: from
    /// a socket bound to a device, to a broadcast address or to a link's multicast group. The
    /// kernel is told to drop it. Or an IPv6 routing header leads a plain packet to a destination
    /// that is to be protected, or its type is unknown while any destination is.
    OutUnprotected => "out_unprotected", Some(X::OutError),
        "A program bound to a device (`SO_BINDTODEVICE`), or a covered broadcast.",
        "Unbind the program, or add a policy without templates for what may leave plain.";
    /// Outbound: an ICMP error or redirect that was about to leave plain, and quotes a packet that
    /// a policy `in` or `fwd` protects: it would disclose what came in ESP. The kernel is told to
    /// drop it; what routes lead to uxfrm is dropped there.
    OutQuotesProtected => "out_quotes_protected", Some(X::OutError),
        "This host or a router behind it told of a packet out of ESP; no policy covers the answer.",
        "To have it told in ESP, add a policy `out` from that address to the sender's net: docs/guard.md.";
    /// Outbound: a plain packet came back to the TUN again and again. It lost one of its hop limit
    /// each time, and has none left. The sender is not told.
    OutLoop => "out_loop", None,
        "A route by the TUN for what no policy `out` covers, as one that outlives its policy.",
        "`uxfrm why SRC DST` names the route: remove it, or add a policy.";
    /// Outbound: a standing queue at the host's port; this packet was dropped so that its sender
    /// slows down. Linux counts such as drops of a queueing discipline.
    OutQueueStands => "out_queue_stands", None,
        "The host sends faster than the workers encrypt. TCP adapts to these drops.",
        "`uxfrm stat`; more `[runtime] workers`, or a longer `queue_delay`.";
    /// Outbound: the TUN's queue in the kernel was full. Linux counts the device's `tx_dropped`.
    /// Counted once a second.
    OutPortFull => "out_port_full", None,
        "A worker did not run for too long, or the host sends more than it can take.",
        "`ip link set DEVICE txqueuelen 10000`, or more `[runtime] workers`.";

    /// Inbound: the bytes are no IP or UDP packet, or a header's length is wrong; also a packet
    /// whose headers end in another fragment.
    InMalformed => "in_malformed", Some(X::InHdrError),
        "A broken sender or middlebox, a scan, or frames cut short by a capture limit.",
        "`tcpdump -nvi DEVICE host SRC` shows what arrives.";
    /// Inbound: the checksum of the packet's IPv4 header is wrong.
    InChecksum => "in_checksum", Some(X::InHdrError),
        "Damage on the way: a bad cable, memory or network card, here or at a router.",
        "`ethtool -S DEVICE` for errors; `tcpdump -nvi DEVICE` prints `bad cksum`.";
    /// Inbound: ESP shorter than header, IV, trailer and ICV, or not a multiple of the block.
    InRunt => "in_runt", Some(X::InHdrError),
        "Something that is no ESP on the ESP port, or the peer uses another cipher.",
        "Compare `enc`, `auth` or `aead` of both ends: `uxfrm xfrm state list nokeys`.";
    /// Inbound: no state for SPI, destination, protocol and mark (also SPI 0).
    InNoState => "in_no_state", Some(X::InNoStates),
        "The peer still uses a state that is gone here, or the SPI differs at the two ends.",
        "Compare SPIs: `uxfrm xfrm state list nokeys` here and at the peer; rekey.";
    /// Inbound: the state passed its hard limit.
    InStateExpired => "in_state_expired", Some(X::InStateExpired),
        "Nobody replaced the state in time: a limit on static keys, or a rekeying that fails.",
        "`uxfrm xfrm -s state list nokeys` shows limits and use; rekey, or add a new state.";
    /// Inbound: the state has `dir out`.
    InStateDirection => "in_state_direction", Some(X::InStateDirError),
        "The state was added with the wrong `dir`, or with source and destination swapped.",
        "`uxfrm xfrm state list nokeys`: correct the state's `dir`.";
    /// Inbound: the state requires UDP encapsulation and the packet has none, or the other way
    /// round.
    InEncapMismatch => "in_encap_mismatch", Some(X::InStateMismatch),
        "Only one end has `encap espinudp`, or IKE found a NAT at one end only.",
        "Compare `encap` of both ends: `uxfrm xfrm state list nokeys`.";
    /// Inbound: sequence number already seen (RFC 4303 §3.4.3), before or after decryption.
    InReplay => "in_replay", Some(X::InStateSeqError),
        "The network doubled packets, two hosts send by one state, or somebody replays.",
        "`tcpdump -ni DEVICE 'ip proto 50'`; see that only one peer has the key.";
    /// Inbound: sequence number older than the window, or with ESN none in 64 bits.
    InTooOld => "in_too_old", Some(X::InStateSeqError),
        "Reordering: a gateway numbers in several workers, or by paths of different delay.",
        "Give the state a wider window (`replay-window 4096`), or the sender one worker.";
    /// Inbound: the number may have been received before uxfrm started: after a crash the window
    /// begins at the reserved edge. See `docs/sequence-numbers.md`.
    InBeforeRestart => "in_before_restart", Some(X::InStateSeqError),
        "A crash here, or the peer numbers anew with old keys. It ends above the reserved edge.",
        "Wait, or rekey, which ends it at once.";
    /// Inbound: an authentic number above the edge reserved on the disk; the next ones pass as soon
    /// as more is reserved.
    InReplayReserve => "in_replay_reserve", Some(X::InStateSeqError),
        "A peer that leaped far ahead, as a uxfrm that was killed. If it lasts: a full disk.",
        "Nothing if it has ended. Else `journalctl -u uxfrm`; free space of the state directory.";
    /// Inbound: sequence number 0, which is never sent. As in the kernel it counts as no failure of
    /// the state (`net/xfrm/xfrm_replay.c: xfrm_replay_check_legacy`).
    InNoNumber => "in_no_number", Some(X::InStateSeqError),
        "A peer that does not number its packets, or forged packets.",
        "See what the peer runs; `tcpdump -nvi DEVICE 'ip proto 50'` prints `seq=0x0`.";
    /// Inbound: the ICV is wrong.
    InForged => "in_forged", Some(X::InStateProtoError),
        "The keys, algorithms or `flag esn` of the two ends differ. Seldom: damage, or forgery.",
        "Compare keys and `flag esn` of both ends; rekey.";
    /// Inbound: a device reports that the packet is not of the state's protocol.
    InDeviceProtocol => "in_device_protocol", Some(X::InStateProtoError),
        "The device looked up a state for a packet of another protocol.",
        "`uxfrm dev show`; add the state without `offload` and see whether it passes.";
    /// Inbound: a device could not decrypt the packet.
    InDeviceError => "in_device_error", Some(X::InBufferError),
        "The device is out of resources, or faulty.",
        "`uxfrm dev show` for its counters; use the state without `offload`.";
    /// Inbound: a device marked the packet with a state that it does not have, has no more, or has
    /// for another kind of offload, or with none where one is needed.
    InDeviceMark => "in_device_mark", Some(X::InNoStates),
        "Packets were under way while the state was removed from the device.",
        "Nothing right after a rekey; otherwise `uxfrm dev show`.";
    /// Inbound: ESP of a state with packet offload that its device did not decrypt. Software must
    /// not: the device has the replay window.
    InDeviceOnly => "in_device_only", Some(X::InStateInvalid),
        "The packets arrive by another interface than the state's device, or in fragments.",
        "Compare the state's `offload … dev` with the interface they arrive on.";
    /// Inbound: the device's link is down. Not about IPsec: the kernel has no Xfrm line for it.
    InDeviceDown => "in_device_down", None,
        "The link was taken down while packets arrived.",
        "`uxfrm dev show`.";
    /// Inbound: dropped by a rule of a device's flow director (`action -1`).
    InFlowRule => "in_flow_rule", None,
        "A rule that somebody added to drop these packets.",
        "`uxfrm dev flow DEVICE -u`.";
    /// Inbound: a plain packet without a device's mark, for a policy with packet offload. Linux
    /// lets it in.
    InDeviceUnmarked => "in_device_unmarked", Some(X::InTmplMismatch),
        "A plain packet came by another interface, or the peer does not protect this flow.",
        "`tcpdump -ni DEVICE host SRC`; compare the peer's policies `out` with ours `in`.";
    /// Inbound: padding length larger than the packet, or wrong padding bytes.
    InPadding => "in_padding", Some(X::InStateProtoError),
        "Without authentication: a wrong encryption key. Otherwise a faulty peer.",
        "Compare the encryption keys of both ends; give the state `auth` or an `aead`.";
    /// Inbound: next header 59, a dummy packet (RFC 4303 §2.6): discarded as it should be.
    InDummy => "in_dummy", None,
        "The peer hides its traffic pattern by packets without content.",
        "Nothing.";
    /// Inbound: tunnel mode and the inner bytes are no IP packet, or transport mode and an
    /// impossible next header.
    InInnerMalformed => "in_inner_malformed", Some(X::InHdrError),
        "Without authentication: a wrong key. Otherwise a faulty peer, or another mode there.",
        "Compare mode and keys of both ends: `uxfrm xfrm state list nokeys`.";
    /// Inbound: the checksum of the inner packet's IPv4 header is wrong, though the ICV was right.
    InInnerChecksum => "in_inner_checksum", Some(X::InHdrError),
        "The packet was damaged before the peer encrypted it.",
        "Look at the peer and behind it: `ethtool -S` and `tcpdump -nv` there.";
    /// Inbound: the mode of the state does not carry this next header.
    InModeMismatch => "in_mode_mismatch", Some(X::InStateModeError),
        "One end has `mode tunnel`, the other `mode transport`.",
        "Compare the modes of both ends: `uxfrm xfrm state list nokeys`.";
    /// Inbound: the inner packet does not fit the state's selector.
    InSelectorMismatch => "in_selector_mismatch", Some(X::InStateMismatch),
        "The peer sends more by this state than was agreed: its policy is wider than ours.",
        "Compare the state's `sel` with the peer's policy `out`.";
    /// Inbound: the outer header carried CE and the inner one is not ECN-capable (RFC 6040 §4.2).
    InEcn => "in_ecn", Some(X::InHdrError),
        "A congested router marked the packet, as the peer had not copied the inner ECN outward.",
        "Set `flag noecn` at the peer, or mend its ECN handling.";
    /// Inbound: more than six SAs around one packet.
    InTooDeep => "in_too_deep", Some(X::InBufferError),
        "A loop: ESP is encrypted again and again before it arrives.",
        "Except `proto esp` and UDP 4500 from the peer's policies `out`.";
    /// Inbound: a plain packet that should have been protected, or each plain fragment of one.
    InUnprotected => "in_unprotected", Some(X::InTmplMismatch),
        "The peer has no policy `out` like ours `in`, or somebody forges packets.",
        "`tcpdump -ni DEVICE host SRC`; compare the peer's policies `out` with ours `in`.";
    /// Inbound: a policy matches, and the packet came by other states than those of its templates:
    /// another reqid, mode, SPI or address, one too many or one too few.
    InOtherState => "in_other_state", Some(X::InTmplMismatch),
        "The reqid, mode or addresses of state and policy differ, or the peer uses another tunnel.",
        "Compare `tmpl` in `uxfrm xfrm policy list` with `uxfrm xfrm state list nokeys`.";
    /// Inbound: the packet came through an SA in tunnel mode, and no policy matches.
    InNoPolicy => "in_no_policy", Some(X::InNoPols),
        "No policy `dir in` (for this host) or `dir fwd` (for others) covers the inner packet.",
        "`uxfrm xfrm policy list dir fwd`; add the policy that is missing.";
    /// Inbound: no policy matches and the default is block.
    InDefaultBlock => "in_default_block", Some(X::InNoPols),
        "The default for `in` or `fwd` is block, and no policy was made for this flow.",
        "`uxfrm xfrm policy getdefault`; add a policy, or set the default to accept.";
    /// Inbound: the policy says block.
    InPolicyBlock => "in_policy_block", Some(X::InPolBlock),
        "A policy `action block` covers this flow, by intent or by a too wide selector.",
        "`uxfrm xfrm -s policy list` and look for `action block`.";
    /// Inbound: a fragment to this host that could not be reassembled (overlap, timeout, memory
    /// limit): of an outer packet, or out of ESP.
    InFragment => "in_fragment", Some(X::InHdrError),
        "Loss, or a peer that sends more incomplete datagrams than one SA may hold (64).",
        "Raise the path's MTU, or lower the sender's: `docs/fragments.md`.";
    /// Inbound: a policy of the last run protected or blocked the packet, and none has replaced it
    /// since the start.
    InHeld => "in_held", Some(X::InPolBlock),
        "Who put the policy in, an IKE daemon or `ip xfrm` lines, has not done it again since.",
        "Start that daemon or script. If it runs, install its traps anew; or `uxfrm release`.";
    /// Inbound: a NAT keepalive (RFC 3948 §2.3): one byte 0xff, discarded as it should be.
    InKeepalive => "in_keepalive", None,
        "The peer keeps its NAT's mapping open.",
        "Nothing.";
    /// Inbound: a zero non-ESP marker (RFC 3948 §2.2) and no IKE daemon to deliver it to.
    InIkeUnclaimed => "in_ike_unclaimed", None,
        "IKE messages arrive, and no IKE daemon runs under `uxfrm exec`.",
        "Start the IKE daemon under `uxfrm exec`: `docs/ike.md`.";
    /// Inbound: uxfrm lost track of a packet's buffer. It never should.
    InUnexpected => "in_unexpected", None,
        "A fault of uxfrm.",
        "Report it with `uxfrm drops -j`.";
    /// Inbound: a standing queue at a port towards the network; this packet, which had passed, was
    /// dropped so that its sender slows down.
    InQueueStands => "in_queue_stands", None,
        "More arrives than the workers decrypt. TCP adapts to these drops.",
        "`uxfrm stat`; more `[runtime] workers`, or a longer `queue_delay`.";
    /// Inbound: the kernel's queue of a socket or ring that a worker reads was full: raw ESP, UDP
    /// (also a wrong checksum), `AF_XDP`, packet socket. Counted once a second. UDP datagrams that
    /// the kernel had joined (`UDP_GRO`), up to 64, count as one: it reports no more.
    InPortFull => "in_port_full", None,
        "A worker did not run for too long, or more comes than it can take.",
        "`sysctl net.core.rmem_max` (raise it), or more `[runtime] workers`.";

    /// Forwarded: malformed header, or a wrong checksum of it.
    ForwardMalformed => "forward_malformed", Some(X::FwdHdrError),
        "A broken sender, or damage on the way.",
        "`tcpdump -nvi DEVICE` shows what arrives.";
    /// Forwarded: an impossible source: loopback, multicast, unspecified, or an address of this
    /// host.
    ForwardMartian => "forward_martian", None,
        "A forged source, or an address of this host used by another one.",
        "`tcpdump -eni DEVICE host SRC` shows who sends it.";
    /// Forwarded: a super-packet of the port that can't be segmented: other headers around TCP or
    /// UDP than uxfrm knows.
    ForwardSuper => "forward_super", None,
        "The kernel joined packets of an encapsulation that uxfrm does not segment.",
        "`ethtool -K DEVICE gro off rx-gro-hw off` on the port.";
    /// Forwarded: TTL or hop limit exceeded; the sender is told. Linux counts it as `InHdrErrors`
    /// of IP.
    ForwardHops => "forward_hops", None,
        "A traceroute, or a routing loop.",
        "`traceroute DST` from the sender.";
    /// Forwarded: no route, or a route by neither port. Linux counts it as `InNoRoutes` or
    /// `OutNoRoutes` of IP.
    ForwardNoRoute => "forward_no_route", None,
        "The route to the destination is missing, or leads by an interface that is no port.",
        "`ip route get DST`.";
    /// Forwarded: the neighbour does not answer, or its queue is full. Linux counts it among a
    /// device's neighbours.
    ForwardNoNeighbour => "forward_no_neighbour", None,
        "The next hop is down or unreachable.",
        "`ip neigh show` and `ping` the next hop of `ip route get DST`.";
    /// Forwarded: larger than the next link's MTU and not to be fragmented; the sender is told.
    /// Linux counts it as `FragFails` of IP.
    ForwardTooBig => "forward_too_big", None,
        "Normal for a flow's first packets. If it goes on, the sender gets no ICMP error.",
        "Allow ICMP to the sender, or lower its MTU.";
    /// Forwarded: an ICMP error to a sender behind the wire that no policy protects: it would
    /// disclose a packet that was protected.
    ForwardUnprotected => "forward_unprotected", None,
        "The policies protect the flow, and not ICMP errors back to its sender.",
        "Widen the policy `out` to all protocols between these networks.";
    /// Transmit: the port's queue was full or the kernel had no buffers.
    PortFull => "port_full", Some(X::OutNoQueueSpace),
        "A burst larger than the port takes, towards the network or the host.",
        "`ip -s link show DEVICE`; raise `txqueuelen` or `net.core.wmem_max`.";
    /// Transmit: larger than the link's MTU (`EMSGSIZE`).
    PortTooBig => "port_too_big", Some(X::OutError),
        "The path MTU has just shrunk: the next packets are smaller.",
        "If it goes on: `ip route get PEER`, and the MTU of that interface.";
    /// Transmit: the port refused the packet.
    PortRefused => "port_refused", Some(X::OutError),
        "The interface is down, there is no route to the peer, or a packet filter refuses it.",
        "`ip route get PEER`; `nft list ruleset`.";
}
