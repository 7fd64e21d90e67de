//! Super-packets of a size that leaves as one burst: a host that makes them larger has each of them
//! sent, and received, in two parts, of which the second is mostly small and costs as much as the
//! first but for its bytes.

use uxfrm_io::rtnetlink::Rtnetlink;

/// Bytes of a burst that fit one message wherever it is made, with what of IPv6 and UDP counts
/// among them.
const BYTES: u32 = 65_000;
/// Datagrams of one message (`UDP_MAX_SEGMENTS` of kernels before 6.9).
const DATAGRAMS: u32 = 64;
/// Bytes of IPv4's and UDP's headers, which a path counts and a message does not.
const HEADERS: u32 = 28;

/// Has the host cut no super-packet for a TUN into more packets than leave as one burst over a path
/// that takes packets of `mtu` bytes.
pub(crate) fn fit(rtnetlink: &mut Rtnetlink, tun: u32, mtu: u32) {
    // Without it they leave in two bursts.
    if let Err(error) = rtnetlink.set_segments(tun, segments(mtu)) {
        tracing::debug!(%error, "the kernel does not limit super-packets");
    }
}

/// Packets of the longest that a path takes, in one burst.
fn segments(mtu: u32) -> u32 {
    (BYTES / mtu.saturating_sub(HEADERS).max(1)).clamp(1, DATAGRAMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gso_limit_of_mtu_fits_one_message() {
        for (mtu, expected) in [(1500, 44), (9000, 7), (1280, 51), (576, 64), (65_535, 1), (0, 64)]
        {
            assert_eq!(segments(mtu), expected, "{mtu}");
        }
    }
}
