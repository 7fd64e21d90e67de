//! Interface features, as set by `ethtool -K`. For set-up, not for the data path.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::socket;

/// State of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Feature names of the kernel (`net/ethtool/common.c: netdev_features_strings`).
pub mod feature {
    /// Joins consecutive packets of a flow on receive: `gro`.
    pub const GRO: &[&str] = &["rx-gro"];
    /// Accepts TCP and UDP super-packets: `tso`, `gso` and `tx-udp-segmentation`. Without them
    /// packets on the wire never exceed the MTU, and a veth feeds its peer's GRO.
    pub const SUPER_PACKETS: &[&str] = &[
        "tx-tcp-segmentation",
        "tx-tcp-ecn-segmentation",
        "tx-tcp-mangleid-segmentation",
        "tx-tcp6-segmentation",
        "tx-udp-segmentation",
        "tx-generic-segmentation",
    ];
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;
// Of `linux/ethtool.h`.
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const SFEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`.
const FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`, in words.
const NAME_WORDS: usize = 8;
/// Most features of a kernel; it has some sixty.
const MOST: u32 = 1024;

/// Sets features of an interface in the calling thread's namespace. Features that the kernel does
/// not know or has fixed stay as they are.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENODEV`, or a name of more than 15 bytes.
pub fn set_features(interface: &str, features: &[&str], switch: FeatureState) -> io::Result<()> {
    let device = Device::named(interface)?;
    let known = device.features()?;
    let mut request = vec![SFEATURES, 0];
    request.resize(2 + 2 * known.len().div_ceil(32), 0);
    request[1] = u32::try_from(known.len().div_ceil(32)).unwrap_or(0);
    for (at, name) in known.iter().enumerate() {
        if features.contains(&name.as_str()) {
            let bit = 1 << (at % 32);
            request[2 + at / 32 * 2] |= bit;
            request[3 + at / 32 * 2] |= if switch == FeatureState::On { bit } else { 0 };
        }
    }
    device.ask(&mut request)
}

/// An interface, and a socket for requests.
struct Device {
    name: [u8; 16],
    socket: OwnedFd,
}

impl Device {
    fn named(interface: &str) -> io::Result<Self> {
        let mut name = [0; 16];
        if interface.is_empty() || interface.len() >= name.len() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        name[..interface.len()].copy_from_slice(interface.as_bytes());
        Ok(Self { name, socket: socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)? })
    }

    /// Names of all features, in bit order.
    fn features(&self) -> io::Result<Vec<String>> {
        // `struct ethtool_sset_info`: a mask of 64 bits, and as many counts as it has bits.
        let mut info = [GSSET_INFO, 0, 1 << FEATURES, 0, 0];
        self.ask(&mut info)?;
        let count = info[4].min(MOST);
        let mut strings = vec![GSTRINGS, FEATURES, count];
        strings.resize(3 + NAME_WORDS * count as usize, 0);
        self.ask(&mut strings)?;
        Ok(strings[3..].chunks_exact(NAME_WORDS).map(text).collect())
    }

    /// Sends a request; the answer, for which `words` has room, replaces it.
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        let mut request = Request { name: self.name, value: words.as_mut_ptr(), rest: [0; 16] };
        // SAFETY: SIOCETHTOOL reads one `ifreq`, of which `Request` has size and layout, and reads
        // and writes what it points to: live words, as many as the command that is first among them
        // says itself.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A name that ends with a zero byte.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// `struct ifreq` as SIOCETHTOOL uses it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: *mut u32,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interface_is_enodev() {
        let error = set_features("no-such-thing", feature::GRO, FeatureState::On).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
        assert!(set_features("a-name-of-17-byte", feature::GRO, FeatureState::On).is_err());
    }

    #[test]
    fn ethtool_feature_names_exist_in_kernel() {
        let known = Device::named("lo").unwrap().features().unwrap();
        for name in feature::GRO.iter().chain(feature::SUPER_PACKETS) {
            assert!(known.iter().any(|known| known == name), "{name} of {known:?}");
        }
    }
}
