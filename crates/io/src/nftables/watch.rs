//! Notices of removed tables (`NFNLGRP_NFTABLES`): before Linux 6.9 `nft flush ruleset`, which
//! distributions' services run on reload, removes all.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

/// `NFNLGRP_NFTABLES` is group 7.
const GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE`
const TABLE_GONE: u16 = 10 << 8 | 2;
/// Largest datagram of the kernel.
const LONGEST: usize = 64 * 1024;

/// A listening socket; readable when there is something to [take](TableWatch::take_gone).
#[derive(Debug)]
pub struct TableWatch {
    socket: Socket,
    buffer: Box<[u8]>,
}

impl TableWatch {
    /// Listens from now on, in the network namespace that the thread is in.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind(&SocketAddr::new(0, GROUP))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket, buffer: vec![0; LONGEST].into() })
    }

    /// Whether tables were removed since the last call, perhaps ours, perhaps by us.
    pub fn take_gone(&mut self) -> bool {
        let mut are_gone = false;
        loop {
            match self.socket.recv(&mut &mut self.buffer[..], 0) {
                Ok(length) => {
                    are_gone |= tells_of_table(self.buffer.get(..length).unwrap_or_default());
                }
                // Notices were lost, perhaps such ones.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => are_gone = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_nothing) => return are_gone,
            }
        }
    }
}

impl AsFd for TableWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a datagram reports a removed table.
fn tells_of_table(mut messages: &[u8]) -> bool {
    while let Some((length, rest)) = messages.split_first_chunk::<4>() {
        let kind = rest.first_chunk().map(|kind| u16::from_ne_bytes(*kind));
        if kind == Some(TABLE_GONE) {
            return true;
        }
        let length = usize::try_from(u32::from_ne_bytes(*length)).unwrap_or(usize::MAX).max(16);
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: usize) -> Vec<u8> {
        let length = u32::try_from(16 + body).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes()].concat();
        bytes.resize((16 + body).next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn watch_finds_removed_table_among_other_changes() {
        let (rule, table) = (message(10 << 8 | 6, 21), message(TABLE_GONE, 8));
        assert!(!tells_of_table(&rule));
        assert!(tells_of_table(&[rule.clone(), table.clone()].concat()));
        assert!(tells_of_table(&table[..8]), "cut off");
        assert!(!tells_of_table(&[0; 40]), "no length");
        assert!(!tells_of_table(&[]));
    }
}
