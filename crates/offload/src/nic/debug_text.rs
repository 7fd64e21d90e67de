//! netdevsim's debugfs text of its SAs (`/sys/kernel/debug/netdevsim/netdevsimN/ports/0/ipsec`),
//! which tests compare as a whole.

use std::fmt::Write;
use std::net::IpAddr;

use uxfrm_engine::Direction;

use super::ModelNic;
use super::association::Association;

impl ModelNic {
    /// netdevsim's text of its SAs, with keys: for readers who may see them in `ip xfrm state` too.
    #[must_use]
    pub fn debug_text(&self) -> String {
        let states = self.states.in_order();
        let mut text = format!("SA count={} tx={}\n", states.len(), self.encrypted);
        for association in states {
            // Writing to a string does not fail.
            let _ = write_state(&mut text, association);
        }
        text
    }
}

fn write_state(text: &mut String, association: &Association) -> std::fmt::Result {
    let (slot, id) = (association.slot, association.id());
    let receives = association.direction == Direction::In;
    let [a, b, c, d] = if receives { words(id.destination) } else { [0; 4] };
    let letter = if receives { 'r' } else { 't' };
    writeln!(text, "sa[{slot}] {letter}x ipaddr=0x{a:08x} {b:08x} {c:08x} {d:08x}")?;
    let secrets = association.sa.secrets();
    let key = secrets.encryption_key.expose();
    let (key, salt) = key.split_at(key.len().min(16));
    let [salt, ..] = chunks(salt);
    let protocol = id.protocol.number();
    let crypt = u8::from(!key.is_empty());
    let spi = id.spi.0;
    writeln!(
        text,
        "sa[{slot}]    spi=0x{spi:08x} proto=0x{protocol:x} salt=0x{salt:08x} crypt={crypt}"
    )?;
    let [a, b, c, d] = chunks(key);
    writeln!(text, "sa[{slot}]    key=0x{a:08x} {b:08x} {c:08x} {d:08x}")
}

/// An address as the kernel stores it, in little-endian words; IPv4 in the last.
fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => [0, 0, 0, u32::from_le_bytes(v4.octets())],
        IpAddr::V6(v6) => chunks(&v6.octets()),
    }
}

/// The first 16 bytes in little-endian words, padded with 0.
fn chunks(bytes: &[u8]) -> [u32; 4] {
    let mut all = [0; 16];
    let len = bytes.len().min(16);
    all[..len].copy_from_slice(&bytes[..len]);
    let (words, _) = all.as_chunks::<4>();
    std::array::from_fn(|place| words.get(place).map_or(0, |word| u32::from_le_bytes(*word)))
}
