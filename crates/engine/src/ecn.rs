//! TOS and traffic class at a tunnel's ends: ECN and DSCP.
//!
//! Outward as `net/xfrm/xfrm_output.c: xfrm4_tunnel_encap_add` with `INET_ECN_encapsulate`: an
//! inner CE becomes ECT(0) outside, so that congestion inside is not reported twice. Inward as RFC
//! 6040 §4.2.

use uxfrm_packet::Ecn;

use crate::sa::config::{SaExtraFlags, SaFlags};

const ECN: u8 = 0b11;
const ECT_0: u8 = 0b10;

/// Maps inner bytes to outer ones; computed once per SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TosRule {
    /// The bits that are copied outside.
    kept: u8,
}

impl TosRule {
    /// The rule for an SA's flags.
    pub(crate) fn of(flags: SaFlags, extra: SaExtraFlags) -> Self {
        let dscp = if extra.contains(SaExtraFlags::DONT_ENCAP_DSCP) { 0 } else { !ECN };
        let ecn = if flags.contains(SaFlags::NOECN) { 0 } else { ECN };
        Self { kept: dscp | ecn }
    }

    /// The outer header's byte.
    #[inline]
    pub(crate) fn outer(self, inner: u8) -> u8 {
        // ECT(0)'s bit clears the other one: CE becomes ECT(0), and nothing else changes.
        inner & !((inner & ECT_0) >> 1) & self.kept
    }
}

/// The outer header has CE and the inner one is not ECN-capable (RFC 6040 §4.2): drop the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotEcnCapable;

/// Whether decapsulation leaves the inner byte unchanged, whatever its value.
#[inline]
pub(crate) fn stays(outer: u8, flags: SaFlags) -> bool {
    outer & ECN == 0 && !flags.contains(SaFlags::DECAP_DSCP)
}

/// The inner byte after decapsulation; `None` if it does not change.
#[inline]
pub(crate) fn inner_after(
    outer: u8,
    inner: u8,
    flags: SaFlags,
) -> Result<Option<u8>, NotEcnCapable> {
    if stays(outer, flags) {
        return Ok(None);
    }
    let mut tos = inner;
    if flags.contains(SaFlags::DECAP_DSCP) {
        tos = (outer & !ECN) | (inner & ECN);
    }
    if !flags.contains(SaFlags::NOECN) {
        tos = (tos & !ECN) | combined(outer, inner)?;
    }
    Ok((tos != inner).then_some(tos))
}

/// The table of RFC 6040 §4.2, figure 4.
fn combined(outer: u8, inner: u8) -> Result<u8, NotEcnCapable> {
    match (Ecn::of_tos(inner), Ecn::of_tos(outer)) {
        (Ecn::NotEct, Ecn::Ce) => Err(NotEcnCapable),
        (Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce, Ecn::Ce) => Ok(ECN),
        (Ecn::Ect0, Ecn::Ect1) => Ok(outer & ECN),
        (Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce, Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1) => {
            Ok(inner & ECN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outward_as_inet_ecn_encapsulate() {
        let plain = TosRule::of(SaFlags::empty(), SaExtraFlags::empty());
        let no_dscp = TosRule::of(SaFlags::empty(), SaExtraFlags::DONT_ENCAP_DSCP);
        let no_ecn = TosRule::of(SaFlags::NOECN, SaExtraFlags::empty());
        for (inner, copied, without_dscp, without_ecn) in [
            (0xb8, 0xb8, 0, 0xb8),
            (0xb9, 0xb9, 1, 0xb8),
            (0xba, 0xba, 2, 0xb8),
            (0xbb, 0xba, 2, 0xb8),
        ] {
            assert_eq!(plain.outer(inner), copied);
            assert_eq!(no_dscp.outer(inner), without_dscp);
            assert_eq!(no_ecn.outer(inner), without_ecn);
        }
    }

    #[test]
    fn inward_as_rfc_6040() {
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let columns = [0b00, 0b10, 0b01, 0b11];
        let table = [
            (0b00, [Ok(0b00), Ok(0b00), Ok(0b00), Err(NotEcnCapable)]),
            (0b10, [Ok(0b10), Ok(0b10), Ok(0b01), Ok(0b11)]),
            (0b01, [Ok(0b01), Ok(0b01), Ok(0b01), Ok(0b11)]),
            (0b11, [Ok(0b11), Ok(0b11), Ok(0b11), Ok(0b11)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in columns.into_iter().zip(row) {
                let got =
                    inner_after(outer, inner, SaFlags::empty()).map(|tos| tos.unwrap_or(inner));
                assert_eq!(got, expected, "inner {inner:02b}, outer {outer:02b}");
            }
        }
    }

    #[test]
    fn flags_select_copied_tos_bits() {
        assert_eq!(inner_after(0xb8 | 3, 0x20, SaFlags::NOECN), Ok(None));
        assert_eq!(inner_after(0xb8, 0x22, SaFlags::DECAP_DSCP), Ok(Some(0xba)));
    }
}
