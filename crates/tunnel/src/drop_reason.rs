//! Drop reasons of tunnels: one closed list for counters, logs, traces and tests.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal;)+) => {
        /// Why a packet was dropped. Each dropped packet is counted under exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons, in order of declaration; `reason as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in metrics, logs and traces.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

drop_reasons! {
    /// Outbound: the bytes are no IP packet, or the header lies about its length.
    OutMalformed => "tunnel_out_malformed";
    /// Outbound: the tunnel does not carry this version of IP (IPv6 into `ipip`, IPv4 into `sit` of
    /// mode `ip6ip`).
    OutWrongVersion => "tunnel_out_wrong_version";
    /// Outbound: the tunnel has no remote address, and the packet does not say one either (6to4,
    /// 6rd).
    OutNoRemote => "tunnel_out_no_remote";
    /// Outbound: the packet is already one of this tunnel's own: it would encapsulate itself again
    /// and again (the kernel's `collisions`).
    OutRecursion => "tunnel_out_recursion";
    /// Outbound: more tunnels around one packet than [`MAX_NESTING`](crate::MAX_NESTING).
    OutTooDeep => "tunnel_out_too_deep";
    /// Outbound: the packet's tunnel encapsulation limit is 0 (RFC 2473 §4.1.1); its sender is
    /// told.
    OutEncapLimit => "tunnel_out_encap_limit";
    /// Outbound: larger than the path takes, and not to be fragmented; its sender is told.
    OutTooBig => "tunnel_out_too_big";
    /// Outbound: no headroom, or longer than an IP packet can be after encapsulation.
    OutNoRoom => "tunnel_out_no_room";
    /// Outbound: the checksum that is still to be filled in lies outside the packet.
    OutChecksum => "tunnel_out_checksum";
    /// Outbound: the network did not take the packet: no route, link down, queue full, or larger
    /// than the link takes.
    OutRefused => "tunnel_out_refused";
    /// Outbound: the tunnel's TUN had no room for what the host sent: uxfrm was not quick enough.
    /// Counted once a second, from `tx_dropped` of the interface; a longer queue (`ip link set DEV
    /// txqueuelen 10000`) holds longer bursts.
    OutPortFull => "tunnel_out_port_full";
    /// Outbound: a super-packet that can't be cut (not TCP or UDP as it is marked, a fragment,
    /// segments of 0 bytes).
    OutSuper => "tunnel_out_super";

    /// Inbound: the bytes are no IP or UDP packet, or a header lies about its length.
    InMalformed => "tunnel_in_malformed";
    /// Inbound: an outer fragment; only whole packets are decapsulated.
    InFragment => "tunnel_in_fragment";
    /// Inbound: a datagram for which there is no receive port.
    InNoPort => "tunnel_in_no_port";
    /// Inbound: the outer UDP checksum is wrong.
    InUdpChecksum => "tunnel_in_udp_checksum";
    /// Inbound: no UDP checksum over IPv6, and the receive port does not allow that (RFC 6936 §4).
    InZeroChecksum => "tunnel_in_zero_checksum";
    /// Inbound: a GUE header cut short, or one without room for what its flags announce.
    InGueTruncated => "tunnel_in_gue_truncated";
    /// Inbound: a GUE version other than 0 and 1, or version 1 before what is no IP packet.
    InGueVersion => "tunnel_in_gue_version";
    /// Inbound: GUE flags or private flags that are not known, so that what they announce can't be
    /// told apart.
    InGueFlags => "tunnel_in_gue_flags";
    /// Inbound: a GUE control message. Refused, as in the kernel.
    InGueControl => "tunnel_in_gue_control";
    /// Inbound: remote checksum offload points outside the packet.
    InGueRemoteChecksum => "tunnel_in_gue_remote_checksum";
    /// Inbound: a GUE data message of protocol 0.
    InGueProtocol => "tunnel_in_gue_protocol";
    /// Inbound: more UDP encapsulations one in the other than
    /// [`MAX_UDP_LAYERS`](crate::MAX_UDP_LAYERS).
    InTooDeep => "tunnel_in_too_deep";
    /// Inbound: nobody takes what was encapsulated: a protocol that is no tunnel's.
    InUnclaimed => "tunnel_in_unclaimed";
    /// Inbound: a GRE header cut short, of another version than 0, or with source routes.
    InGreMalformed => "tunnel_in_gre_malformed";
    /// Inbound: the GRE checksum is wrong, or is there and the tunnel has none, or the other way
    /// round.
    InGreChecksum => "tunnel_in_gre_checksum";
    /// Inbound: the tunnel numbers its packets (`iseq`), and this one has no number or one that has
    /// gone by.
    InGreSequence => "tunnel_in_gre_sequence";
    /// Inbound: GRE carries neither IPv4 nor IPv6.
    InGreProtocol => "tunnel_in_gre_protocol";
    /// Inbound: no tunnel has these ends and this key.
    InNoTunnel => "tunnel_in_no_tunnel";
    /// Inbound: what was encapsulated is not the IP packet that it is said to be, or its header
    /// lies about its length.
    InInnerMalformed => "tunnel_in_inner_malformed";
    /// Inbound: the tunnel does not carry this version of IP.
    InWrongVersion => "tunnel_in_wrong_version";
    /// Inbound: the outer header carried CE and the inner one is not ECN-capable (RFC 6040 §4.2).
    InEcn => "tunnel_in_ecn";
    /// Inbound: the IPv4 address within the inner source is not the outer source (6to4, 6rd: RFC
    /// 5969 §9.2).
    InSpoofed => "tunnel_in_spoofed";

    /// Inbound: the host did not take the inner packet: interface down, or queue full.
    InRefused => "tunnel_in_refused";
    /// Inbound: the tunnel's socket had no room: uxfrm was not quick enough. Counted once a second;
    /// datagrams that the kernel joined (`UDP_GRO`) count once. `ss -uamp` shows what waits
    /// (`skmem`); `net.core.rmem_max` limits the room where uxfrm may not exceed it.
    InPortFull => "tunnel_in_port_full";

    /// ICMP: not an error, or no IP header in what it quotes.
    ErrorMalformed => "tunnel_error_malformed";
    /// ICMP: the socket for errors had no room. Counted once a second.
    ErrorPortFull => "tunnel_error_port_full";
    /// ICMP: an error about a packet that no tunnel here has sent.
    ErrorForeign => "tunnel_error_foreign";
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
        for (place, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
