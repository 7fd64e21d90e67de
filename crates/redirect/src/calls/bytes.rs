//! Arbitrary bytes at a program's calls, for fuzzers and tests; checks the bounds of its buffers.

use std::mem::zeroed;
use std::os::fd::AsRawFd as _;

use libc::{c_int, iovec, msghdr};

use super::own_policy::OwnPolicy;
use super::{control, datagram, ethtool, generic, vectors};
use crate::ends::Ends;
use crate::table::{self, RecvOption};

/// What stands behind a buffer that a program lends.
const FENCE: u8 = 0xa5;

/// What a socket of generic netlink sends, in one buffer and in two.
pub(crate) fn generic(input: &[u8]) {
    let whole = generic::is_for_gateway(input);
    if let Some(told) = generic::greeting_result(input) {
        assert!(told.is_ok() || !whole);
    }
    let (first, second) = input.split_at(input.len() / 3);
    let parts =
        [first, second].map(|part| vectors::vector(part.as_ptr().cast_mut().cast(), part.len()));
    // SAFETY: both are valid for their lengths.
    let bytes: [u8; 512] = unsafe { vectors::prefix(&parts) };
    let length = vectors::room(&parts).min(512);
    assert_eq!(bytes[..length], input[..length]);
}

/// Options' values, and what the kernel says of an interface's features.
pub(crate) fn options(input: &[u8]) {
    let _ = OwnPolicy::of_xfrm(input);
    let _ = OwnPolicy::of_key(input);
    let (names, _) = input.as_chunks();
    // SAFETY: there are so many names.
    let found = unsafe { ethtool::find_name(names.as_ptr(), names.len()) };
    assert!(found.is_none_or(|place| place < names.len()));
}

/// Writes a datagram's addresses to a program's message. `room`: for the address, for control
/// messages, and the options that the program set.
pub(crate) fn told(ends: &Ends, room: &[u8]) {
    let &[name, control, wishes, ..] = room else { return };
    let descriptor = std::io::stdin().as_raw_fd();
    table::remove(descriptor);
    let Some(socket) = table::insert_datagram(descriptor, ends.family, ends.local) else { return };
    socket.set_wanted(RecvOption::Address, c_int::from(wishes & 1));
    socket.set_wanted(RecvOption::Tos, c_int::from(wishes & 2));
    let (mut address, mut messages) = ([FENCE; 256 + 8], [u64::from_ne_bytes([FENCE; 8]); 33]);
    // SAFETY: all bytes zero is a valid `msghdr`.
    let mut message: msghdr = unsafe { zeroed() };
    (message.msg_name, message.msg_namelen) = (address.as_mut_ptr().cast(), name.into());
    (message.msg_control, message.msg_controllen) = (messages.as_mut_ptr().cast(), control.into());
    // SAFETY: the buffers are valid for those lengths.
    unsafe { datagram::tell(&mut message, socket, ends) };
    assert!(address[usize::from(name)..].iter().all(|byte| *byte == FENCE));
    let written: Vec<u8> = messages.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert!(written[usize::from(control)..].iter().all(|byte| *byte == FENCE));
    assert!(message.msg_controllen <= usize::from(control));
    say_again(&message, *ends);
    table::remove(descriptor);
}

/// What was told can be said: the message is sent back from where it came to.
fn say_again(message: &msghdr, ends: Ends) {
    let mut said = ends;
    // SAFETY: it was just written.
    unsafe { control::read(message, &mut said) };
    assert_eq!((said.family, said.remote), (ends.family, ends.remote));
    let none: &[iovec] = &[];
    // SAFETY: the message has no vectors.
    assert_eq!(unsafe { vectors::vectors(message) }.len(), none.len());
}
