//! Control messages (`cmsg(3)`) in a byte buffer, without pointer arithmetic.

/// Bytes for the control messages of one datagram; the largest set in use needs 112.
pub(crate) const ROOM: usize = 192;

const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

/// The control messages of one datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct ControlMessages {
    bytes: [u8; ROOM],
    used: usize,
}

impl ControlMessages {
    /// No messages.
    pub(crate) const EMPTY: Self = Self { bytes: [0; ROOM], used: 0 };

    /// Removes all messages.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Length in bytes, with the padding of the last message.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Sets the length that the kernel wrote.
    pub(crate) fn written(&mut self, len: usize) {
        self.used = len.min(ROOM);
    }

    /// For a `msghdr`.
    pub(crate) fn as_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// Adds a message.
    ///
    /// # Panics
    /// When there is no room: the callers' fixed sets fit.
    pub(crate) fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let message = &mut self.bytes[self.used..];
        message[..ALIGN].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        message[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        message[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.used += (HEADER + data.len()).next_multiple_of(ALIGN);
    }

    /// The messages in order: level, kind, data.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.bytes[..self.used];
        std::iter::from_fn(move || {
            let (header, _) = rest.split_at_checked(HEADER)?;
            let length = usize::from_ne_bytes(header[..ALIGN].try_into().ok()?);
            let level = i32::from_ne_bytes(header[HEADER - 8..HEADER - 4].try_into().ok()?);
            let kind = i32::from_ne_bytes(header[HEADER - 4..].try_into().ok()?);
            let data = rest.get(HEADER..length)?;
            rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
            Some((level, kind, data))
        })
    }
}

/// The first four bytes of a message's data as an `int`; a single byte (as of `IP_TOS`) also
/// counts.
pub(crate) fn integer(data: &[u8]) -> Option<i32> {
    match *data {
        [byte] => Some(i32::from(byte)),
        [a, b, c, d, ..] => Some(i32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_back_in_order() {
        let mut control = ControlMessages::EMPTY;
        control.put(0, 8, &[1; 12]);
        control.put(17, 103, &1400_u16.to_ne_bytes());
        control.put(41, 67, &3_i32.to_ne_bytes());
        let found: Vec<_> = control.messages().collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], (17, 103, &1400_u16.to_ne_bytes()[..]));
        assert_eq!(integer(found[2].2), Some(3));
    }

    proptest! {
        #[test]
        fn arbitrary_cmsg_bytes_terminate(bytes in proptest::collection::vec(any::<u8>(), ROOM)) {
            let mut control = ControlMessages::EMPTY;
            control.bytes.copy_from_slice(&bytes);
            control.written(ROOM);
            prop_assert!(control.messages().count() <= ROOM / HEADER);
        }
    }
}
