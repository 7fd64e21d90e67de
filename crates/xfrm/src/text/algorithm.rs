//! Algorithms and keys (`ip/ipxfrm.c: __xfrm_algo_print`).

use uxfrm_netlink::{
    AttributeType,
    client::{RawAlgorithm, RawSizedAlgorithm, ReplyAttributes},
};
use zerocopy::FromBytes as _;

use super::{Keys, WipedText};
use crate::grammar::HIDDEN_KEY;

impl WipedText<'_> {
    /// All algorithms of a state, in the order in which iproute2 prints them.
    pub(super) fn algorithms(&mut self, found: &ReplyAttributes<'_>, prefix: &str) {
        match (found.value(AttributeType::AlgAuth), found.value(AttributeType::AlgAuthTrunc)) {
            (_, Some(value)) => self.sized_algorithm("auth-trunc", value, prefix),
            (Some(value), None) => self.plain_algorithm("auth", value, prefix),
            (None, None) => {}
        }
        if let Some(value) = found.value(AttributeType::AlgAead) {
            self.sized_algorithm("aead", value, prefix);
        }
        if let Some(value) = found.value(AttributeType::AlgCrypt) {
            self.plain_algorithm("enc", value, prefix);
        }
        if let Some(value) = found.value(AttributeType::AlgComp) {
            self.plain_algorithm("comp", value, prefix);
        }
    }

    fn plain_algorithm(&mut self, kind: &str, value: &[u8], prefix: &str) {
        self.put(format_args!("{prefix}{kind} "));
        match RawAlgorithm::read_from_prefix(value) {
            Ok((raw, key)) => self.algorithm(&raw.name, raw.key_bits, key),
            Err(_) => self.truncated(),
        }
        self.end_line();
    }

    fn sized_algorithm(&mut self, kind: &str, value: &[u8], prefix: &str) {
        self.put(format_args!("{prefix}{kind} "));
        match RawSizedAlgorithm::read_from_prefix(value) {
            Ok((raw, key)) => {
                self.algorithm(&raw.name, raw.key_bits, key);
                self.put(format_args!(" {}", raw.icv_bits.cast_signed()));
            }
            Err(_) => self.truncated(),
        }
        self.end_line();
    }

    fn algorithm(&mut self, name: &[u8], key_bits: u32, key: &[u8]) {
        self.put(format_args!("{} ", algorithm_name(name)));
        let len = usize::try_from(key_bits / 8).unwrap_or(usize::MAX);
        let Some(key) = key.get(..len) else { return self.truncated() };
        if self.keys == Keys::Hidden {
            self.raw(HIDDEN_KEY);
        } else if !key.is_empty() {
            self.raw("0x");
            key.iter().for_each(|byte| self.put(format_args!("{byte:02x}")));
            if self.shows_statistics() {
                self.put(format_args!(" ({key_bits} bits)"));
            }
        }
    }
}

/// Up to its zero.
pub(crate) fn algorithm_name(name: &[u8]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}
