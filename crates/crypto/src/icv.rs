//! Constant-time comparison of ICVs, a word at a time.

use subtle::ConstantTimeEq;

/// Whether a received ICV equals the beginning of `tag`, in constant time.
#[inline]
pub(crate) fn matches(received: &[u8], tag: &[u8]) -> bool {
    let Some(tag) = tag.get(..received.len()) else { return false };
    let (words, rest) = received.as_chunks::<8>();
    let (tag_words, tag_rest) = tag.as_chunks::<8>();
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let mut different = 0;
    for (a, b) in words.iter().zip(tag_words) {
        different |= word(a) ^ word(b);
    }
    for (a, b) in rest.iter().zip(tag_rest) {
        different |= u64::from(a ^ b);
    }
    different.ct_eq(&0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icv_comparison_checks_all_bits() {
        let tag: [u8; 32] = core::array::from_fn(|at| u8::try_from(at * 7).unwrap());
        for len in [4, 8, 12, 16, 24, 32] {
            let received = &tag[..len];
            assert!(matches(received, &tag) && matches(received, received));
            for bit in 0..len * 8 {
                let mut wrong = received.to_vec();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches(&wrong, &tag), "{bit} of {len} bytes");
            }
        }
        assert!(!matches(&tag, &tag[..16]));
    }
}
