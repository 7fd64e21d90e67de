//! Drop reasons of tunnels: one closed list for counters, logs, traces and tests.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal,
        $cause:literal, $next:literal;)+) => {
        /// Why a packet was dropped. Each dropped packet is counted under exactly one.
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
            /// All reasons, in order of declaration; `reason as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in metrics, logs and traces.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
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

            /// What to try next, in a line. DEVICE, REMOTE, DST and PORT stand for the tunnel's.
            #[must_use]
            pub const fn next_step(self) -> &'static str {
                match self { $(Self::$name => $next,)+ }
            }
        }
    };
}

drop_reasons! {
    /// Outbound: the bytes are no IP packet, or the header lies about its length.
    OutMalformed => "tunnel_out_malformed",
        "A program that writes raw packets into the tunnel's interface.",
        "`tcpdump -ni DEVICE` on the tunnel's interface.";
    /// Outbound: the tunnel does not carry this version of IP (IPv6 into `ipip`, IPv4 into `sit` of
    /// mode `ip6ip`).
    OutWrongVersion => "tunnel_out_wrong_version",
        "A route leads packets of the other IP version into the tunnel.",
        "`ip route get DST`; use `mode any` or another kind of tunnel.";
    /// Outbound: the tunnel has no remote address, and the packet does not say one either (6to4,
    /// 6rd).
    OutNoRemote => "tunnel_out_no_remote",
        "The tunnel has no `remote`, and the destination names none.",
        "`uxfrm link show`; add `remote`.";
    /// Outbound: the packet is already one of this tunnel's own: it would encapsulate itself again
    /// and again (the kernel's `collisions`).
    OutRecursion => "tunnel_out_recursion",
        "The route to the tunnel's remote leads into the tunnel itself.",
        "`ip route get REMOTE`; add a route to it past the tunnel.";
    /// Outbound: more than five tunnels around one packet (`MAX_NESTING`).
    OutTooDeep => "tunnel_out_too_deep",
        "Tunnels are routed one into the other in a loop.",
        "`ip route get REMOTE` for each tunnel.";
    /// Outbound: the packet's tunnel encapsulation limit is 0 (RFC 2473 §4.1.1); its sender is
    /// told.
    OutEncapLimit => "tunnel_out_encap_limit",
        "More tunnels around the packet than an earlier one allows.",
        "Set `encaplimit none` at the tunnel that set the limit.";
    /// Outbound: larger than the path takes, and not to be fragmented; its sender is told.
    OutTooBig => "tunnel_out_too_big",
        "Normal for a flow's first packets. If it goes on, the sender gets no ICMP error.",
        "Allow ICMP to the sender, or lower the MTU of the tunnel's interface.";
    /// Outbound: no headroom, or longer than an IP packet can be after encapsulation.
    OutNoRoom => "tunnel_out_no_room",
        "A packet of nearly 64 KiB, which the tunnel would make larger than IP allows.",
        "Lower the sender's MTU or datagram size.";
    /// Outbound: the checksum that is still to be filled in lies outside the packet.
    OutChecksum => "tunnel_out_checksum",
        "A fault of the sender's network driver.",
        "`ethtool -K DEVICE tx off` on the sender's interface.";
    /// Outbound: the network did not take the packet: no route, link down, queue full, or larger
    /// than the link takes.
    OutRefused => "tunnel_out_refused",
        "No route to the remote, the link is down, or its queue is full.",
        "`ip route get REMOTE`; `ip -s link show DEVICE`.";
    /// Outbound: the tunnel's TUN had no room for what the host sent: uxfrm was not quick enough.
    /// Counted once a second, from `tx_dropped` of the interface.
    OutPortFull => "tunnel_out_port_full",
        "The host sends more than the tunnel's thread can take.",
        "`ip link set DEVICE txqueuelen 10000` on the tunnel's interface.";
    /// Outbound: a super-packet that can't be cut (not TCP or UDP as it is marked, a fragment,
    /// segments of 0 bytes).
    OutSuper => "tunnel_out_super",
        "The kernel joined packets in a form that uxfrm does not segment.",
        "`ethtool -K DEVICE tso off gso off` on the tunnel's interface.";

    /// Inbound: the bytes are no IP or UDP packet, or a header lies about its length.
    InMalformed => "tunnel_in_malformed",
        "A broken sender or middlebox, or a scan.",
        "`tcpdump -nvi DEVICE host REMOTE`.";
    /// Inbound: an outer fragment; only whole packets are decapsulated.
    InFragment => "tunnel_in_fragment",
        "The path to here has a smaller MTU than the remote thinks.",
        "Lower the MTU of the remote's tunnel.";
    /// Inbound: a datagram for which there is no receive port.
    InNoPort => "tunnel_in_no_port",
        "Datagrams under way when the receive port was deleted.",
        "`uxfrm fou show`; add the port.";
    /// Inbound: the outer UDP checksum is wrong.
    InUdpChecksum => "tunnel_in_udp_checksum",
        "Damage on the way, or a faulty checksum offload at the remote.",
        "`ethtool -K DEVICE tx off` at the remote, and see whether it ends.";
    /// Inbound: no UDP checksum over IPv6, and the receive port does not allow that (RFC 6936 §4).
    InZeroChecksum => "tunnel_in_zero_checksum",
        "The remote sends without UDP checksums, and this end does not allow that.",
        "Set `encap-csum6` at the remote.";
    /// Inbound: a GUE header cut short, or one without room for what its flags announce.
    InGueTruncated => "tunnel_in_gue_truncated",
        "Something that is no GUE arrives at the port.",
        "`tcpdump -nvi DEVICE udp port PORT`.";
    /// Inbound: a GUE version other than 0 and 1, or version 1 before what is no IP packet.
    InGueVersion => "tunnel_in_gue_version",
        "Something that is no GUE arrives at the port, or the remote uses FOU.",
        "`uxfrm fou show`: `gue` at both ends, or at neither.";
    /// Inbound: GUE flags or private flags that are not known, so that what they announce can't be
    /// told apart.
    InGueFlags => "tunnel_in_gue_flags",
        "The remote uses an extension of GUE that uxfrm does not know.",
        "Turn the extension off at the remote.";
    /// Inbound: a GUE control message. Refused, as in the kernel.
    InGueControl => "tunnel_in_gue_control",
        "The remote sends control messages, which the kernel refuses too.",
        "Turn them off at the remote.";
    /// Inbound: remote checksum offload points outside the packet.
    InGueRemoteChecksum => "tunnel_in_gue_remote_checksum",
        "A faulty or hostile sender.",
        "`noencap-remcsum` at the remote's tunnel.";
    /// Inbound: a GUE data message of protocol 0.
    InGueProtocol => "tunnel_in_gue_protocol",
        "A faulty sender.",
        "`tcpdump -nvi DEVICE udp port PORT`.";
    /// Inbound: more than four UDP encapsulations one in the other (`MAX_UDP_LAYERS`).
    InTooDeep => "tunnel_in_too_deep",
        "A loop, or a hostile sender.",
        "`tcpdump -nvi DEVICE udp port PORT`.";
    /// Inbound: nobody takes what was encapsulated: a protocol that is no tunnel's.
    InUnclaimed => "tunnel_in_unclaimed",
        "The receive port's `ipproto` is of no tunnel, or the remote sends another protocol.",
        "`uxfrm fou show`; compare `ipproto` with the remote's tunnel.";
    /// Inbound: a GRE header cut short, of another version than 0, or with source routes.
    InGreMalformed => "tunnel_in_gre_malformed",
        "The remote speaks PPTP or another GRE, or it is a scan.",
        "`tcpdump -nvi DEVICE proto gre`.";
    /// Inbound: the GRE checksum is wrong, or is there and the tunnel has none, or the other way
    /// round.
    InGreChecksum => "tunnel_in_gre_checksum",
        "Only one end has `csum`, or damage on the way.",
        "`uxfrm link show` at both ends: `icsum` here as `ocsum` there.";
    /// Inbound: the tunnel numbers its packets (`iseq`), and this one has no number or one that has
    /// gone by.
    InGreSequence => "tunnel_in_gre_sequence",
        "Only one end has `seq`, reordering, or the remote has begun anew.",
        "`uxfrm link show` at both ends: `iseq` here as `oseq` there.";
    /// Inbound: GRE carries neither IPv4 nor IPv6.
    InGreProtocol => "tunnel_in_gre_protocol",
        "The remote sends Ethernet or another protocol by GRE.",
        "Use `type gre`, not `gretap`, at the remote.";
    /// Inbound: no tunnel has these ends and this key.
    InNoTunnel => "tunnel_in_no_tunnel",
        "`local`, `remote` or `key` of the two ends do not fit together.",
        "`uxfrm link show` at both ends.";
    /// Inbound: what was encapsulated is not the IP packet that it is said to be, or its header
    /// lies about its length.
    InInnerMalformed => "tunnel_in_inner_malformed",
        "A faulty sender, or the receive port's `ipproto` is another one than the remote's.",
        "`uxfrm fou show`; compare `ipproto` with the remote's tunnel.";
    /// Inbound: the tunnel does not carry this version of IP.
    InWrongVersion => "tunnel_in_wrong_version",
        "The remote routes packets of the other IP version into the tunnel.",
        "Use `mode any` or another kind of tunnel.";
    /// Inbound: the outer header carried CE and the inner one is not ECN-capable (RFC 6040 §4.2).
    InEcn => "tunnel_in_ecn",
        "A congested router marked the packet, as the remote had not copied the inner ECN outward.",
        "Set `tos inherit` at the remote's tunnel.";
    /// Inbound: the IPv4 address within the inner source is not the outer source (6to4, 6rd: RFC
    /// 5969 §9.2).
    InSpoofed => "tunnel_in_spoofed",
        "A forged inner source, or another 6rd prefix at the remote.",
        "Compare the 6rd settings of both ends.";

    /// Inbound: the host did not take the inner packet: interface down, or queue full.
    InRefused => "tunnel_in_refused",
        "The tunnel's interface is down, or the host can't keep up.",
        "`ip -s link show DEVICE`; `ip link set DEVICE up`.";
    /// Inbound: the tunnel's socket had no room: uxfrm was not quick enough. Counted once a second;
    /// datagrams that the kernel joined (`UDP_GRO`) count once.
    InPortFull => "tunnel_in_port_full",
        "More arrives than the tunnel's thread can take.",
        "`ss -uamp` shows what waits (`skmem`); raise `net.core.rmem_max`.";

    /// ICMP: not an error, or no IP header in what it quotes.
    ErrorMalformed => "tunnel_error_malformed",
        "A broken router, or a forged error.",
        "Nothing, unless it goes on: `tcpdump -nvi DEVICE icmp`.";
    /// ICMP: the socket for errors had no room. Counted once a second.
    ErrorPortFull => "tunnel_error_port_full",
        "A flood of ICMP errors.",
        "`tcpdump -nvi DEVICE icmp` shows who sends them.";
    /// ICMP: an error about a packet that no tunnel here has sent.
    ErrorForeign => "tunnel_error_foreign",
        "An error about other traffic of this host, or a forged one.",
        "Nothing.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_place_and_a_name_of_its_own() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert_eq!((crate::MAX_NESTING, crate::MAX_UDP_LAYERS), (5, 4), "their reasons say so");
        for (place, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
