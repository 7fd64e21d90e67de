//! A connection between two processes of one gateway that passes descriptors: the supervisor's to a
//! gateway, and a gateway's to its successor.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
            recvmsg, sendmsg, setsockopt, socketpair, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use zeroize::Zeroizing;

/// Bytes of a message per datagram: a socket's default buffer holds several.
const PIECE: usize = 48 * 1024;

/// Descriptors per datagram (`SCM_MAX_FD` is 253).
const PASSED: usize = 128;

/// First byte of a datagram: whether the message continues in the next.
const LAST: u8 = 0;
const MORE: u8 = 1;

/// One end.
#[derive(Debug)]
pub struct FdChannel {
    socket: OwnedFd,
}

/// A received message: bytes, which may be keys, and descriptors.
#[derive(Debug, Default)]
pub struct FdMessage {
    /// The bytes.
    pub bytes: Zeroizing<Vec<u8>>,
    /// The descriptors, in the order in which they were sent.
    pub descriptors: Vec<OwnedFd>,
}

impl FdChannel {
    /// Both ends of a new connection.
    ///
    /// # Errors
    /// The kernel's: too many descriptors open.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// Wraps a descriptor.
    #[must_use]
    pub const fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The descriptor.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.socket
    }

    /// Limits how long sending and receiving wait for the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_timeout(&self, most: Duration) -> io::Result<()> {
        let time = TimeVal::milliseconds(i64::try_from(most.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&self.socket, sockopt::SendTimeout, &time)?;
        Ok(setsockopt(&self.socket, sockopt::ReceiveTimeout, &time)?)
    }

    /// Sends a message with descriptors, which stay open here.
    ///
    /// # Errors
    /// `EPIPE` when the other end is gone, `EAGAIN` when it does not read; the kernel's.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut pieces = bytes.chunks(PIECE);
        let mut passed = descriptors.chunks(PASSED);
        let count = pieces.len().max(passed.len()).max(1);
        for number in 1..=count {
            let head = [if number == count { LAST } else { MORE }];
            let piece = pieces.next().unwrap_or_default();
            let parts = [IoSlice::new(&head), IoSlice::new(piece)];
            let raw: Vec<RawFd> =
                passed.next().unwrap_or_default().iter().map(|fd| fd.as_raw_fd()).collect();
            let rights = [ControlMessage::ScmRights(&raw)];
            let control = if raw.is_empty() { &[][..] } else { &rights };
            let flags = MsgFlags::MSG_NOSIGNAL;
            sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, flags, None)?;
        }
        Ok(())
    }

    /// The next message; `None` when the other end is gone.
    ///
    /// # Errors
    /// `EAGAIN` when none comes; the kernel's; `InvalidData` for what no [`FdChannel::send`] sent.
    pub fn receive(&self) -> io::Result<Option<FdMessage>> {
        self.receive_pieces(usize::MAX)
    }

    /// Receives from an untrusted sender: a message of at most some 48 KiB, in one datagram.
    ///
    /// # Errors
    /// As [`FdChannel::receive`]; `InvalidData` for a longer one.
    pub fn receive_short(&self) -> io::Result<Option<FdMessage>> {
        self.receive_pieces(1)
    }

    fn receive_pieces(&self, most: usize) -> io::Result<Option<FdMessage>> {
        // One allocation, which is wiped: no copies of keys remain.
        let bytes = Zeroizing::new(Vec::with_capacity(PIECE));
        let mut parcel = FdMessage { bytes, descriptors: Vec::new() };
        let mut buffer = Zeroizing::new(vec![0; PIECE + 1]);
        for _ in 0..most {
            let length = self.receive_piece(&mut buffer, &mut parcel.descriptors)?;
            let Some((head, piece)) = buffer[..length].split_first() else { return Ok(None) };
            parcel.bytes.extend_from_slice(piece);
            match *head {
                LAST => return Ok(Some(parcel)),
                MORE => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    fn receive_piece(&self, buffer: &mut [u8], into: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut space = nix::cmsg_space!([RawFd; PASSED]);
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
        // Signals are blocked or read from a descriptor wherever this is called.
        let mut message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags);
        if message == Err(Errno::ECONNRESET) {
            // The other end closed with data unread; earlier messages can still be read.
            message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags);
        }
        let message = message?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(passed) = control {
                // SAFETY: the kernel has just given each of them to us.
                into.extend(passed.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        Ok(message.bytes)
    }
}

impl AsFd for FdChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _, io::Write as _};

    use super::*;

    #[test]
    fn long_messages_and_many_descriptors_arrive_whole() {
        let (here, there) = FdChannel::pair().unwrap();
        let bytes: Vec<u8> = (0..=250).cycle().take(PIECE * 3 + 7).collect();
        let (pipes, mut ends): (Vec<_>, Vec<_>) =
            (0..PASSED + 5).map(|_| io::pipe().unwrap()).unzip();
        let sender = std::thread::spawn(move || {
            let fds: Vec<_> = pipes.iter().map(|pipe| pipe.as_fd()).collect();
            here.send(&bytes, &fds).unwrap();
            here.send(b"", &[]).unwrap();
            bytes
        });
        let parcel = there.receive().unwrap().unwrap();
        assert_eq!(*parcel.bytes, there_is(&there, sender));
        assert_eq!(parcel.descriptors.len(), ends.len());
        for (number, (fd, end)) in parcel.descriptors.into_iter().zip(&mut ends).enumerate() {
            let byte = u8::try_from(number % 256).unwrap();
            end.write_all(&[byte]).unwrap();
            let mut read = [0];
            File::from(fd).read_exact(&mut read).unwrap();
            assert_eq!(read, [byte]);
        }
        assert!(there.receive().unwrap().is_none(), "the other end is gone");
    }

    fn there_is(there: &FdChannel, sender: std::thread::JoinHandle<Vec<u8>>) -> Vec<u8> {
        let empty = there.receive().unwrap().unwrap();
        assert!(empty.bytes.is_empty() && empty.descriptors.is_empty());
        sender.join().unwrap()
    }

    #[test]
    fn message_before_close_is_received() {
        let (here, there) = FdChannel::pair().unwrap();
        here.send(b"unread", &[]).unwrap();
        there.send(b"last", &[]).unwrap();
        drop(there);
        assert_eq!(*here.receive().unwrap().unwrap().bytes, b"last");
        assert!(here.receive().unwrap().is_none());
    }

    #[test]
    fn untrusted_partial_message_is_not_awaited() {
        let (here, there) = FdChannel::pair().unwrap();
        there.send(b"short", &[]).unwrap();
        assert_eq!(*here.receive_short().unwrap().unwrap().bytes, b"short");
        sendmsg::<()>(
            there.as_fd().as_raw_fd(),
            &[IoSlice::new(&[MORE, 1])],
            &[],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        assert_eq!(here.receive_short().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn silent_peer_times_out() {
        let (here, _there) = FdChannel::pair().unwrap();
        here.set_timeout(Duration::from_millis(1)).unwrap();
        assert_eq!(here.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
