//! `SIOCETHTOOL`: whether an interface has IPsec of its own (`esp-hw-offload`).
//!
//! charon asks before it requests an offload: which kernel feature has that name, then whether the
//! interface has the feature. The kernel answers; the feature's place in its list of names is
//! remembered, and the feature is set in answers about interfaces for which the gateway has a
//! device.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_int, ifreq};

use uxfrm_control::greeting::{Dialect, Greeting, GreetingKind};

use crate::{errno, gateway, next};

/// `ETHTOOL_GSTRINGS`, `ETH_SS_FEATURES`, `ETH_GSTRING_LEN`, `ETHTOOL_GFEATURES`.
const STRINGS: u32 = 0x1b;
const OF_FEATURES: u32 = 4;
const NAME_LENGTH: usize = 32;
const FEATURES: u32 = 0x3a;

/// The feature's name.
const NAME: &[u8] = b"esp-hw-offload\0";
/// Where the kernel has it among all features.
static PLACE: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Bytes of an answer about a device, and how it begins if there is one:
/// `uxfrm_offload::dev::Answer`.
const ANSWER: usize = 64;
const DEVICE: &[u8] = b"{\"device\":";

/// `struct ethtool_get_features_block`.
#[repr(C)]
struct Block {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// Looks at what the kernel has answered.
///
/// # Safety
/// `request` is what the kernel has just done a `SIOCETHTOOL` with.
pub(super) unsafe fn answered(request: *const ifreq) {
    // SAFETY: by this function's contract: a name and a pointer to what was asked, which begins
    // with the command and two more words.
    let (request, asked) =
        unsafe { (&*request, (*request).ifr_ifru.ifru_data.cast::<u32>().cast_const()) };
    // SAFETY: as above.
    match unsafe { asked.read_unaligned() } {
        // SAFETY: by this function's contract; this one has three words, and so many names behind
        // them as the third says.
        STRINGS => unsafe {
            if asked.add(1).read_unaligned() == OF_FEATURES {
                let count = usize::try_from(asked.add(2).read_unaligned()).unwrap_or(0);
                if let Some(place) = find_name(asked.add(3).cast(), count) {
                    PLACE.store(place, Ordering::Relaxed);
                }
            }
        },
        FEATURES => {
            // SAFETY: by this function's contract; this one has two words, and so many blocks
            // behind them as the second says.
            let count = usize::try_from(unsafe { asked.add(1).read_unaligned() }).unwrap_or(0);
            let place = PLACE.load(Ordering::Relaxed);
            if place / 32 < count && is_device(&request.ifr_name) {
                // SAFETY: the block is one of those.
                unsafe {
                    let block = asked.add(2).cast::<Block>().cast_mut().add(place / 32);
                    for word in [&raw mut (*block).available, &raw mut (*block).active] {
                        word.write_unaligned(word.read_unaligned() | 1 << (place % 32));
                    }
                }
            }
        }
        _ => {}
    }
}

/// # Safety
/// There are `count` names of [`NAME_LENGTH`] bytes each.
pub(super) unsafe fn find_name(names: *const [u8; NAME_LENGTH], count: usize) -> Option<usize> {
    // SAFETY: by this function's contract.
    let mut names = (0..count).map(|place| unsafe { names.add(place).read_unaligned() });
    names.position(|name| name.starts_with(NAME))
}

/// Whether the gateway has a device of this name; not when there is no gateway.
fn is_device(name: &[c_char; libc::IFNAMSIZ]) -> bool {
    let mut question = FeatureRequest::default();
    question.push(b"{\"show\":{\"device\":\"");
    for letter in name.iter().map(|letter| letter.to_ne_bytes()[0]).take_while(|byte| *byte != 0) {
        if !letter.is_ascii_graphic() || letter == b'"' || letter == b'\\' {
            return false;
        }
        question.push(&[letter]);
    }
    question.push(b"\",\"part\":\"device\"}}");
    ask(question.bytes()).unwrap_or(false)
}

fn ask(question: &[u8]) -> Result<bool, c_int> {
    let connection = gateway::connect()?;
    let hello = Greeting {
        kind: GreetingKind::Hello,
        port: 0,
        groups: 0,
        options: 0,
        value: Dialect::Devices as u32,
    };
    let answer = gateway::send(connection, hello).and_then(|()| exchange(connection, question));
    gateway::close(connection);
    answer
}

fn exchange(connection: c_int, question: &[u8]) -> Result<bool, c_int> {
    let (start, length) = (question.as_ptr().cast(), question.len());
    // SAFETY: `question` is valid for its length.
    if unsafe { next::send()(connection, start, length, libc::MSG_NOSIGNAL) } < 0 {
        return Err(errno::last());
    }
    gateway::wait(connection, libc::POLLIN)?;
    let mut answer = [0_u8; ANSWER];
    let start = answer.as_mut_ptr().cast();
    // SAFETY: `answer` is valid for its length.
    if unsafe { next::recv()(connection, start, ANSWER, libc::MSG_DONTWAIT) } < 0 {
        return Err(errno::last());
    }
    Ok(answer.starts_with(DEVICE))
}

/// Words on the stack: nothing is allocated here.
#[derive(Default)]
struct FeatureRequest {
    bytes: [[u8; 32]; 3],
    length: usize,
}

impl FeatureRequest {
    /// What has no room is left out; the longest question takes 64 bytes.
    fn push(&mut self, words: &[u8]) {
        let room = self.bytes.as_flattened_mut().get_mut(self.length..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(words) {
            *to = *from;
            self.length += 1;
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes.as_flattened()[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    #[test]
    fn ethtool_longest_request_fits() {
        let mut question = FeatureRequest::default();
        for words in
            [&b"{\"show\":{\"device\":\""[..], b"abcdefghijklmno", b"\",\"part\":\"device\"}}"]
        {
            question.push(words);
        }
        let words = r#"{"show":{"device":"abcdefghijklmno","part":"device"}}"#;
        assert_eq!(question.bytes(), words.as_bytes());
    }

    #[test]
    fn ethtool_feature_bit_is_found_by_name() {
        let mut names = [[0_u8; NAME_LENGTH]; 50];
        names[45][..NAME.len()].copy_from_slice(NAME);
        names[7][..20].copy_from_slice(b"esp-hw-offload-other");
        // SAFETY: there are so many.
        let places = [50, 45].map(|count| unsafe { find_name(names.as_ptr(), count) });
        assert_eq!(places, [Some(45), None]);
    }

    #[test]
    fn ethtool_other_commands_are_not_changed() {
        let mut asked = [FEATURES, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: all bytes zero is a valid `ifreq`.
        let mut request: ifreq = unsafe { zeroed() };
        request.ifr_name[0] = b'"'.cast_signed();
        request.ifr_ifru.ifru_data = asked.as_mut_ptr().cast();
        PLACE.store(40, Ordering::Relaxed);
        // SAFETY: it says two blocks, and there are two.
        unsafe { answered(&raw const request) };
        assert_eq!(asked, [FEATURES, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
