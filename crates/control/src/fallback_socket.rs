//! Files that replace a gateway's abstract socket names, or are beside them.
//!
//! Any user of a host can take an abstract name before a gateway does. The gateway then listens at
//! a file named after it, in a directory that only root, or the user to whom root gave it, can
//! write to, and that is named after the network namespace. A gateway that has its name listens at
//! the file as well, as any user can fill the name's queue; only those can connect to the file who
//! may ask.
//!
//! | abstract name | file |
//! | --- | --- |
//! | `uxfrm/xfrm` | `/run/uxfrm/4026531833/xfrm` |
//! | `uxfrm/stat` | `/run/uxfrm/4026531833/stat` |
//! | `uxfrm/udp/4500` | `/run/uxfrm/4026531833/udp.4500` |
//! | `uxfrm/udp/4500/c0000201`, an IKE daemon's | `/run/uxfrm/4026531833/udp.4500.c0000201` |
//!
//! A gateway that starts removes directories in which nobody has a socket and that no gateway holds
//! by a lock (`flock`) of `/run/uxfrm/4026531833.lock`, which nobody but its owner may open.
//!
//! Clients try the file first, so that another owner of the name cannot make them wait. The file of
//! a killed gateway refuses connections and is treated as missing.

/// Parent of the directories, created when first needed.
pub const DIRECTORY: &str = "/run/uxfrm";

/// Its inode number identifies the network namespace of the thread, which `setns` and `unshare`
/// change.
pub const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Prefix of abstract names.
const PREFIX: &[u8] = b"uxfrm/";

/// Bytes of the longest path.
pub const LENGTH: usize = 64;

/// Writes the path of the file for `name` in the network namespace of this inode number; returns
/// its length. `None` if it is not a gateway's name.
#[must_use]
pub fn path(namespace: u64, name: &[u8], into: &mut [u8; LENGTH]) -> Option<usize> {
    let name = name.strip_prefix(PREFIX)?;
    let units = std::iter::successors(Some(1_u64), |unit| unit.checked_mul(10));
    let digits = units.take_while(|unit| *unit == 1 || namespace >= *unit).count();
    let number = DIRECTORY.len() + 1..DIRECTORY.len() + 1 + digits;
    let length = number.end + 1 + name.len();
    let room = into.get_mut(..length)?;
    room[..DIRECTORY.len()].copy_from_slice(DIRECTORY.as_bytes());
    room[DIRECTORY.len()] = b'/';
    let mut rest = namespace;
    for digit in room[number.clone()].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    room[number.end] = b'/';
    for (to, from) in room[number.end + 1..].iter_mut().zip(name) {
        *to = if *from == b'/' { b'.' } else { *from };
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(namespace: u64, name: &str) -> Option<String> {
        let mut bytes = [0; LENGTH];
        let length = path(namespace, name.as_bytes(), &mut bytes)?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    #[test]
    fn socket_file_is_unique_per_name_and_namespace() {
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(text(4_026_531_833, "uxfrm/xfrm"), is("/run/uxfrm/4026531833/xfrm"));
        assert_eq!(text(10, "uxfrm/udp/4500"), is("/run/uxfrm/10/udp.4500"));
        assert_eq!(text(9, "uxfrm/stat"), is("/run/uxfrm/9/stat"));
        let longest = format!("uxfrm/udp/65535/{}", "f".repeat(32));
        assert!(text(u32::MAX.into(), &longest).is_some(), "an IKE daemon's, of IPv6");
        assert_eq!(text(0, "uxfrm/stat"), is("/run/uxfrm/0/stat"));
        assert_eq!(text(u64::MAX, "uxfrm/x"), is("/run/uxfrm/18446744073709551615/x"));
        assert_eq!(text(1, "somebody's"), None);
        assert_eq!(text(1, &format!("uxfrm/{}", "x".repeat(LENGTH))), None);
    }
}
