//! TUN interfaces: MTU, queue length and GSO limit of the gateway's, of tunnels' and of devices'.

pub(crate) mod gso_limit;

use uxfrm_io::{rtnetlink::Rtnetlink, tun::Tun};

/// Packets that wait in the TUN at the most. The kernel's 500 small ones are gone in 2 ms, for
/// which a worker may well have to wait for a processor; of larger ones a sender's own window lets
/// fewer wait.
pub(crate) const QUEUE: u32 = 4000;

/// Gives the TUN its MTU, if it is to have another, and brings it up, without addresses of its own
/// making. Its index.
pub(crate) fn bring_up(tun: &Tun, mtu: Option<u16>) -> anyhow::Result<u32> {
    let mut rtnetlink = Rtnetlink::open()?;
    let link = rtnetlink.link(tun.name())?;
    // A link-local address would make the kernel send neighbour and router solicitations into the
    // tunnel. Where the host has switched IPv6 off, what is tunnelled over IPv4 may be IPv6 all the
    // same.
    for (setting, value) in [("addr_gen_mode", "1"), ("disable_ipv6", "0")] {
        let setting = format!("net/ipv6/conf/{}/{setting}", tun.name());
        if let Err(error) = uxfrm_io::netns::set_sysctl(&setting, value) {
            tracing::debug!(%error, "the kernel has no IPv6 on the TUN");
        }
    }
    mtu.map_or(Ok(()), |mtu| rtnetlink.set_mtu(link.index, mtu.into()))?;
    rtnetlink.set_queue_length(link.index, QUEUE)?;
    rtnetlink.set_up(link.index)?;
    Ok(link.index)
}
