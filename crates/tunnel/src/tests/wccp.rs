//! WCCP: routers redirect to web caches in GRE.

use super::*;

/// Cisco's routers send version 1 as IPv4 in GRE, version 2 behind a redirect header of four bytes.
#[test]
fn wccp_in_gre_is_ipv4() {
    let gre = config(TunnelKind::Gre);
    let far = turned(&gre);
    let inner = inner(Version::V4);
    let (good, _) = sent(&tunnel(&gre), &inner).unwrap();
    let with = |redirect: &[u8], behind: &[u8]| {
        let headers = &mut good.bytes()[..24].to_vec();
        headers[22..24].copy_from_slice(&[0x88, 0x3e]);
        let bytes = [headers, redirect, behind].concat();
        let mut packet = PacketBuf::from_slice(&bytes);
        let len = u16::try_from(bytes.len()).unwrap();
        packet.bytes_mut()[2..4].copy_from_slice(&len.to_be_bytes());
        received(&far, &DecapPorts::new(), packet)
    };
    assert_eq!(with(&[], &inner), Ok(inner.clone()));
    assert_eq!(with(&[0x01, 2, 3, 0x45], &inner), Ok(inner.clone()));
    assert_eq!(with(&[0x01, 2, 3, 0x45], &inner[..19]), Err(DropReason::InInnerMalformed));
    assert_eq!(with(&[0x01, 2, 3], &[]), Err(DropReason::InInnerMalformed));
    assert_eq!(with(&[], &[]), Err(DropReason::InInnerMalformed));
}
