//! The files of the two gateways: a configuration and a batch file of `ip xfrm` lines for each.

use std::fs::{self, Permissions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::protection::{EspEncapsulation, EspTransform, Protection};
use super::site::{ESP_IN_UDP, GatewaySite, LAN, PREFIX_LEN, WIRE};

/// A random key for each direction, for one run of one case.
#[expect(missing_debug_implementations, reason = "keys are not for logs")]
pub struct SaKeyPair {
    a_to_b: Zeroizing<[u8; KEY_ROOM]>,
    b_to_a: Zeroizing<[u8; KEY_ROOM]>,
}

/// Enough for any transform here: a cipher key of 16 bytes and a SHA-1 key of 20.
const KEY_ROOM: usize = 36;

impl SaKeyPair {
    /// Draws new keys from the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn random() -> io::Result<Self> {
        let mut keys = Self { a_to_b: [0; KEY_ROOM].into(), b_to_a: [0; KEY_ROOM].into() };
        uxfrm_io::random::fill(&mut *keys.a_to_b)?;
        uxfrm_io::random::fill(&mut *keys.b_to_a)?;
        Ok(keys)
    }

    /// The key of packets to `site`.
    fn towards(&self, site: &GatewaySite) -> &[u8; KEY_ROOM] {
        if *site == super::site::B { &self.a_to_b } else { &self.b_to_a }
    }
}

/// A gateway's configuration beside its states and policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayTuning {
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// Microseconds that packets may wait in a queue (`[wire] queue_delay`); 0 for no limit.
    pub queue_delay: u32,
    /// How it gets packets.
    pub mode: GatewayMode,
    /// Microseconds for which devices gather frames (`[wire] gather`); `None` for the default.
    pub gather: Option<u32>,
}

/// Whose packets a gateway protects, and how it gets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayMode {
    /// The host's packets, by a TUN.
    #[default]
    Host,
    /// The host's packets, by a TUN, with ESP by AF_XDP.
    HostXdp,
    /// Packets of a network behind it, by packet sockets.
    Inline,
    /// Packets of a network behind it, with ESP by AF_XDP.
    InlineXdp,
}

impl Default for GatewayTuning {
    fn default() -> Self {
        Self { workers: NonZeroUsize::MIN, queue_delay: 0, mode: GatewayMode::Host, gather: None }
    }
}

/// Writes both files for the gateway at `here` into `directory`; returns the path of the
/// configuration. Its workers are not pinned: they share the machine with the other gateway's and
/// with both ends of the traffic.
///
/// # Errors
/// A file that can't be written.
pub fn write(
    directory: &Path,
    protection: Protection,
    keys: &SaKeyPair,
    (here, there): (&GatewaySite, &GatewaySite),
    tuning: GatewayTuning,
) -> io::Result<PathBuf> {
    let batch_path = directory.join(format!("{}.batch", here.name));
    let config_path = directory.join(format!("{}.toml", here.name));
    fs::write(&batch_path, batch(protection, keys, (here, there)))?;
    let store_path = directory.join(format!("{}.sequences", here.name));
    fs::write(&config_path, config(&batch_path, &store_path, tuning))?;
    Ok(config_path)
}

/// A directory for keys that only this user may read, removed when dropped. `purpose` is in its
/// name.
///
/// # Errors
/// No space or no permission.
pub fn private_directory(purpose: &str) -> anyhow::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("uxfrm-{purpose}-"))
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .context("cannot make a temporary directory")
}

fn config(
    batch: &Path,
    store: &Path,
    GatewayTuning { workers, queue_delay, mode, gather }: GatewayTuning,
) -> String {
    let inline = match mode {
        GatewayMode::Host | GatewayMode::HostXdp => String::new(),
        GatewayMode::Inline => format!("[inline]\nprotected = \"{LAN}\"\nwire = \"{WIRE}\"\n\n"),
        GatewayMode::InlineXdp => {
            format!("[inline]\nprotected = \"{LAN}\"\nwire = \"{WIRE}\"\nwire_by = \"af-xdp\"\n\n")
        }
    };
    let af_xdp = match mode {
        GatewayMode::HostXdp => format!("af_xdp = \"{WIRE}\"\n"),
        GatewayMode::Host | GatewayMode::Inline | GatewayMode::InlineXdp => String::new(),
    };
    let gather = gather.map(|gather| format!("gather = {gather}\n")).unwrap_or_default();
    // Rust's escapes in `{:?}` are also TOML's for every path of a temporary directory.
    let (batch, store) = (batch.display().to_string(), store.display().to_string());
    format!(
        "{inline}[host]\ntun = \"uxfrm0\"\n\n\
         [wire]\nencapsulation = \"esp\"\nudp_ports = [{ESP_IN_UDP}]\nqueue_delay = {queue_delay}\n{af_xdp}{gather}\n\
         [xfrm]\nbatch = [{batch:?}]\nsequences = {store:?}\n\n\
         [runtime]\nworkers = {workers}\npin = false\n"
    )
}

/// The lines for `here`: a state for each direction, and the policies that use them.
fn batch(
    protection: Protection,
    keys: &SaKeyPair,
    (here, there): (&GatewaySite, &GatewaySite),
) -> Zeroizing<String> {
    let mut lines = Zeroizing::new(String::with_capacity(4096));
    for (from, to) in [(here, there), (there, here)] {
        state(&mut lines, protection, keys.towards(to), (from, to));
    }
    policy(&mut lines, "out", (here, there));
    policy(&mut lines, "in", (there, here));
    policy(&mut lines, "fwd", (there, here));
    lines
}

fn state(
    lines: &mut String,
    protection: Protection,
    key: &[u8; KEY_ROOM],
    (from, to): (&GatewaySite, &GatewaySite),
) {
    lines.push_str(&format!(
        "xfrm state add src {} dst {} proto esp spi {:#x} reqid 1 mode tunnel replay-window 64",
        from.wire, to.wire, to.spi
    ));
    match protection.transform {
        EspTransform::Gcm128 => {
            lines.push_str(" aead rfc4106(gcm(aes)) 0x");
            hex(lines, &key[..20]); // 16 of key and 4 of salt
            lines.push_str(" 128");
        }
        EspTransform::Cbc128Sha1 => {
            lines.push_str(" enc cbc(aes) 0x");
            hex(lines, &key[..16]);
            lines.push_str(" auth-trunc hmac(sha1) 0x");
            hex(lines, &key[16..]);
            lines.push_str(" 96");
        }
    }
    if protection.encapsulation == EspEncapsulation::Udp {
        lines.push_str(&format!(" encap espinudp {ESP_IN_UDP} {ESP_IN_UDP} 0.0.0.0"));
    }
    lines.push('\n');
}

fn policy(lines: &mut String, direction: &str, (from, to): (&GatewaySite, &GatewaySite)) {
    lines.push_str(&format!(
        "xfrm policy add src {}/{PREFIX_LEN} dst {}/{PREFIX_LEN} dir {direction} \
         tmpl src {} dst {} proto esp reqid 1 mode tunnel\n",
        from.lan_net, to.lan_net, from.wire, to.wire
    ));
}

fn hex(lines: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        lines.push(DIGITS[usize::from(byte >> 4)].into());
        lines.push(DIGITS[usize::from(byte & 15)].into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::site::{A, B};
    use super::*;

    const GCM: Protection =
        Protection { transform: EspTransform::Gcm128, encapsulation: EspEncapsulation::Ip };
    const GCM_UDP: Protection = Protection { encapsulation: EspEncapsulation::Udp, ..GCM };
    const CBC: Protection = Protection { transform: EspTransform::Cbc128Sha1, ..GCM };

    fn keys() -> SaKeyPair {
        SaKeyPair { a_to_b: [0xab; KEY_ROOM].into(), b_to_a: [0xba; KEY_ROOM].into() }
    }

    fn lines(protection: Protection, ends: (&GatewaySite, &GatewaySite)) -> Vec<String> {
        batch(protection, &keys(), ends).lines().map(str::to_owned).collect()
    }

    #[test]
    fn gcm_in_udp_has_states_and_policies() {
        let key = "ab".repeat(20);
        let lines = lines(GCM_UDP, (&A, &B));
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[0],
            format!(
                "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0xb000 reqid 1 mode tunnel \
                 replay-window 64 aead rfc4106(gcm(aes)) 0x{key} 128 encap espinudp 4500 4500 0.0.0.0"
            )
        );
        assert!(lines[1].contains("dst 192.0.2.1 proto esp spi 0xa000"));
        assert_eq!(
            lines[2],
            "xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out \
             tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel"
        );
        assert!(lines[3].contains("src 10.2.0.0/24 dst 10.1.0.0/24 dir in tmpl src 192.0.2.2"));
        assert!(lines[4].contains("dir fwd"));
    }

    #[test]
    fn states_are_the_same_at_both_ends() {
        for case in [GCM, CBC] {
            let (mut a, mut b) = (lines(case, (&A, &B)), lines(case, (&B, &A)));
            a[..2].sort();
            b[..2].sort();
            assert_eq!(a[..2], b[..2]);
            assert!(a.iter().all(|line| !line.contains("encap")));
        }
    }

    #[test]
    fn cbc_sha1_state_has_cipher_and_hash_key() {
        let line = &lines(CBC, (&B, &A))[0];
        let (cipher, hash) = ("ba".repeat(16), "ba".repeat(20));
        assert!(
            line.ends_with(&format!(" enc cbc(aes) 0x{cipher} auth-trunc hmac(sha1) 0x{hash} 96"))
        );
    }
}
