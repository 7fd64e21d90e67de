//! The `bpf` system call as far as an XDP program needs it: maps, a program, and its attachment.
//!
//! Each is a descriptor. Closing the last one of the attachment detaches the program, however its
//! process ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::assembler::Instruction;
use super::program::ADDRESS;

/// Commands (`enum bpf_cmd`).
const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const MAP_GET_NEXT_KEY: u32 = 4;
const PROG_LOAD: u32 = 5;
const PROG_TEST_RUN: u32 = 10;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;

/// `BPF_MAP_TYPE_HASH`, and `BPF_F_NO_PREALLOC`: memory only for its entries.
const HASH_MAP: u32 = 1;
const AS_NEEDED: u32 = 1;
/// `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP`, and its attach type `BPF_XDP`.
const MAP_OF_XDP_SOCKETS: u32 = 17;
const XDP_PROGRAM: u32 = 6;
const AT_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: run by the driver, before there is an `sk_buff`.
const BY_DRIVER: u32 = 1 << 2;

const LICENSE: &CStr = c"Apache-2.0 OR MIT";

/// The largest arguments here, those of `PROG_LOAD` in `union bpf_attr`: the kernel reads missing
/// ones as 0.
#[repr(C, align(8))]
struct Arguments([u32; 18]);

impl Arguments {
    /// Sets the first numbers; all others are 0.
    fn new(numbers: &[u32]) -> Self {
        let mut arguments = [0; 18];
        arguments.iter_mut().zip(numbers).for_each(|(argument, number)| *argument = *number);
        Self(arguments)
    }

    /// Stores an address, of something that outlives these arguments, in two numbers.
    #[expect(clippy::cast_possible_truncation, reason = "an address is two halves here")]
    fn with_address<T>(mut self, place: usize, of: *const T) -> Self {
        let address = of.addr() as u64;
        let halves = if cfg!(target_endian = "little") {
            [address as u32, (address >> 32) as u32]
        } else {
            [(address >> 32) as u32, address as u32]
        };
        self.0[place..place + 2].copy_from_slice(&halves);
        self
    }

    /// Runs a command.
    ///
    /// # Safety
    /// Every address in it is that of live memory that the command may use.
    unsafe fn call(&mut self, command: u32) -> io::Result<i32> {
        let size = size_of::<Self>();
        // SAFETY: a live `bpf_attr` of the size given, says the caller of all that it points to.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, (&raw mut self.0).cast::<u8>(), size) };
        match i32::try_from(result) {
            Ok(result) if result >= 0 => Ok(result),
            Ok(_) | Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// As [`call`](Self::call), where a descriptor comes back.
    ///
    /// # Safety
    /// As there.
    unsafe fn open(&mut self, command: u32) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise; and the kernel has just given us the descriptor.
        unsafe { self.call(command).map(|fd| OwnedFd::from_raw_fd(fd)) }
    }
}

/// A map from numbers below `count` to `AF_XDP` sockets, empty.
pub(super) fn sockets(count: u32) -> io::Result<OwnedFd> {
    map([MAP_OF_XDP_SOCKETS, 4, 4, count, 0])
}

/// A set of up to `count` addresses, empty.
pub(super) fn addresses(count: u32) -> io::Result<OwnedFd> {
    let address = u32::try_from(ADDRESS).unwrap_or(0);
    map([HASH_MAP, address, 1, count, AS_NEEDED])
}

/// Creates a map of this type, key and value size, capacity and flags.
fn map(numbers: [u32; 5]) -> io::Result<OwnedFd> {
    // SAFETY: no addresses.
    unsafe { Arguments::new(&numbers).open(MAP_CREATE) }
}

/// Inserts a socket into a map.
pub(super) fn insert(map: BorrowedFd<'_>, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let mut arguments = of_map(map, &raw const number).with_address(4, &raw const socket);
    // SAFETY: the addresses are those of a key and a value of four bytes, live until the call is
    // over.
    unsafe { arguments.call(MAP_UPDATE_ELEM).map(drop) }
}

/// Inserts an address into a set, if it is missing.
pub(super) fn insert_address(set: BorrowedFd<'_>, address: &[u8; ADDRESS]) -> io::Result<()> {
    let value = 1_u8;
    let mut arguments = of_map(set, address).with_address(4, &raw const value);
    // SAFETY: the addresses are those of a key and a value of as many bytes as the set was made
    // for, live until the call is over.
    unsafe { arguments.call(MAP_UPDATE_ELEM).map(drop) }
}

/// Removes an address from a set, if it is there.
pub(super) fn remove_address(set: BorrowedFd<'_>, address: &[u8; ADDRESS]) -> io::Result<()> {
    // SAFETY: the address is that of a key of as many bytes as the set was made for, live until the
    // call is over.
    match unsafe { of_map(set, address).call(MAP_DELETE_ELEM) } {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map(drop),
    }
}

/// All addresses in a set.
pub(super) fn list_addresses(set: BorrowedFd<'_>) -> io::Result<Vec<[u8; ADDRESS]>> {
    let mut found: Vec<[u8; ADDRESS]> = Vec::new();
    loop {
        let mut next = [0_u8; ADDRESS];
        let before = found.last().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut arguments = of_map(set, before).with_address(4, &raw mut next);
        // SAFETY: the addresses are those of keys of as many bytes as the set was made for, live
        // until the call is over, or none for the first one.
        match unsafe { arguments.call(MAP_GET_NEXT_KEY) } {
            Ok(_) => found.push(next),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        }
    }
}

/// Arguments with a map and a key.
fn of_map<T>(map: BorrowedFd<'_>, key: *const T) -> Arguments {
    Arguments::new(&[map.as_raw_fd().cast_unsigned()]).with_address(2, key)
}

/// Loads a program; on refusal returns the verifier's last lines.
pub(super) fn load(asm: &[Instruction]) -> Result<OwnedFd, (io::Error, String)> {
    let count = u32::try_from(asm.len()).unwrap_or(u32::MAX);
    let plain = || {
        let mut arguments = Arguments::new(&[XDP_PROGRAM, count])
            .with_address(2, asm.as_ptr())
            .with_address(4, LICENSE.as_ptr());
        arguments.0[17] = AT_XDP;
        arguments
    };
    // SAFETY: the addresses are those of as many instructions as it says and of a string, live
    // until the call is over.
    let refused = match unsafe { plain().open(PROG_LOAD) } {
        Ok(program) => return Ok(program),
        Err(refused) => refused,
    };
    let mut log = vec![0; 64 << 10];
    let mut arguments = plain().with_address(8, log.as_mut_ptr());
    (arguments.0[6], arguments.0[7]) = (1, u32::try_from(log.len()).unwrap_or(0));
    // SAFETY: as above, and a log of the length given.
    match unsafe { arguments.open(PROG_LOAD) } {
        Ok(program) => Ok(program),
        Err(_again) => Err((refused, verifier_error(&log))),
    }
}

/// Attaches a program to a device in driver mode, until the descriptor is closed.
pub(super) fn attach(program: BorrowedFd<'_>, link: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd().cast_unsigned();
    // SAFETY: no addresses.
    unsafe { Arguments::new(&[program, link, AT_XDP, BY_DRIVER]).open(LINK_CREATE) }
}

/// Replaces an attached program.
pub(super) fn replace(at_device: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let numbers = [at_device, program].map(|fd| fd.as_raw_fd().cast_unsigned());
    // SAFETY: no addresses.
    unsafe { Arguments::new(&numbers).call(LINK_UPDATE).map(drop) }
}

/// Runs a program on a frame without effect; returns its verdict.
pub(super) fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let program = program.as_raw_fd().cast_unsigned();
    let mut arguments = Arguments::new(&[program, 0, len]).with_address(4, frame.as_ptr());
    // SAFETY: the address is that of as many bytes as it says, which the kernel only reads.
    unsafe { arguments.call(PROG_TEST_RUN)? };
    Ok(arguments.0[1])
}

/// The verifier's last lines without its summary.
fn verifier_error(log: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_error_is_kept() {
        let log = b"0: r0 = 1\n1: exit\nR0 is wrong\nprocessed 2 insns (limit 1000000)\n\0\0\0";
        assert_eq!(verifier_error(log), "0: r0 = 1; 1: exit; R0 is wrong");
        assert_eq!(verifier_error(&[0]), "");
    }
}
