//! TOS or traffic-class byte at a tunnel's ends (RFC 6040; `include/net/inet_ecn.h`).

use uxfrm_packet::Ecn;

use crate::DropReason;

const ECN: u8 = 0b11;

/// The outer byte: DSCP of `outer`, ECN of `inner`, but an inner CE becomes ECT(0), so that
/// congestion inside is not reported twice (`INET_ECN_encapsulate`).
#[must_use]
#[inline]
pub fn outward(outer: u8, inner: u8) -> u8 {
    let ecn = match Ecn::of_tos(inner) {
        Ecn::Ce => Ecn::Ect0,
        other @ (Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1) => other,
    };
    ecn.in_tos(outer)
}

/// The inner byte after decapsulation (RFC 6040 §4.2, figure 4; `INET_ECN_decapsulate`).
///
/// # Errors
/// [`DropReason::InEcn`] for congestion that the inner packet cannot express.
#[inline]
pub fn inward(outer: u8, inner: u8) -> Result<u8, DropReason> {
    match (Ecn::of_tos(inner), Ecn::of_tos(outer)) {
        (Ecn::NotEct, Ecn::Ce) => Err(DropReason::InEcn),
        (Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce, Ecn::Ce) => Ok(inner | ECN),
        (Ecn::Ect0, Ecn::Ect1) => Ok(Ecn::Ect1.in_tos(inner)),
        (Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce, Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1) => {
            Ok(inner)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outward_as_inet_ecn_encapsulate() {
        for (outer, inner, expected) in
            [(0xb8, 0, 0xb8), (0xb9, 0x22, 0xba), (0, 0xb9, 1), (0xbb, 3, 0xba), (0x10, 0xff, 0x12)]
        {
            assert_eq!(outward(outer, inner), expected, "{outer:02x} {inner:02x}");
        }
    }

    #[test]
    fn inward_as_rfc_6040() {
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let columns = [0b00, 0b10, 0b01, 0b11];
        let table = [
            (0b00, [Ok(0b00), Ok(0b00), Ok(0b00), Err(DropReason::InEcn)]),
            (0b10, [Ok(0b10), Ok(0b10), Ok(0b01), Ok(0b11)]),
            (0b01, [Ok(0b01), Ok(0b01), Ok(0b01), Ok(0b11)]),
            (0b11, [Ok(0b11), Ok(0b11), Ok(0b11), Ok(0b11)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in columns.into_iter().zip(row) {
                let got = inward(outer | 0x40, inner | 0xb8);
                assert_eq!(got, expected.map(|ecn| ecn | 0xb8), "{inner:02b} in {outer:02b}");
            }
        }
    }
}
