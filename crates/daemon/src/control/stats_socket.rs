//! The counters' socket: who connects is sent the text of `/proc/net/xfrm_stat`, a zero byte, a
//! line for each drop reason, a zero byte, a table of the workers' flow caches, a zero byte, and a
//! line for each thing that is wrong with the store of sequence numbers.
//!
//! Its name is abstract, so each network namespace has its own, it needs no directory and is gone
//! with the process. Where a stranger has it, a file [stands in](uxfrm_control::fallback_socket).
//! Only root and the user that runs the gateway are answered (`SO_PEERCRED`).

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::socket::{Backlog, SockType, UnixAddr, getsockopt, listen, sockopt::PeerCredentials},
    unistd::Uid,
};
use uxfrm_control::STAT_NAME;
use uxfrm_control_client::check_listener;
use uxfrm_engine::{CacheStats, DropCounts, SharedCacheStats};

use crate::{
    control::socket_owner::SocketOwner,
    fallback_socket::{self, SocketFile},
};

/// What the socket is called in the descriptor store.
pub(crate) const DESCRIPTOR: &str = "stat";

/// A client that does not read is not waited for. What is written mostly has room in the socket's
/// buffer.
const PATIENCE: Duration = Duration::from_millis(200);

/// Connections taken before it is others' turn: any user may connect, as an abstract name has no
/// permissions, and who did is known only then.
const TURN: usize = 64;

/// How often a name is looked at at which nobody accepts yet: a gateway may be about to. Then a
/// stranger has it.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// What a client is told.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) counts: DropCounts,
    pub(crate) tunnels: String,
    pub(crate) caches: String,
    /// What is wrong with the store of sequence numbers, a line each.
    pub(crate) notices: String,
}

/// The gateway's end. The process that owns it is the gateway of its network namespace.
#[derive(Debug)]
pub(crate) struct StatSocket {
    listener: UnixListener,
    _file: Option<SocketFile>,
}

impl StatSocket {
    /// Opens the socket of this network namespace: at its name, or where a stranger has that, at
    /// the file that stands in for it.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway runs in this namespace.
    pub(crate) fn open() -> io::Result<Self> {
        // One that found the name taken when it started may have outlived who had it.
        if fallback_socket::find(STAT_NAME).is_some_and(|file| UnixStream::connect(file).is_ok()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(STAT_NAME)?) {
            Ok(listener) => {
                fallback_socket::sweep(STAT_NAME, SockType::Stream);
                Self::of(listener, None)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder()? {
                NameHolder::Stranger => Self::open_elsewhere()
                    .map_err(|error| fallback_socket::refused(STAT_NAME, &error)),
                NameHolder::Ours => Err(error),
                NameHolder::Gateway(owner) => {
                    Err(io::Error::new(io::ErrorKind::AddrInUse, owner.to_string()))
                }
            },
            Err(error) => Err(error),
        }
    }

    /// The one that another process of this gateway has had until now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_socket(listener: OwnedFd) -> io::Result<Self> {
        Self::of(listener.into(), None)
    }

    /// Has whoever connects see this process at the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_listener_over(&self) -> io::Result<()> {
        Ok(listen(&self.listener, Backlog::MAXCONN)?)
    }

    fn open_elsewhere() -> io::Result<Self> {
        let _alone = fallback_socket::lock()?;
        let path = fallback_socket::make(STAT_NAME, SockType::Stream)?;
        let listener = UnixListener::bind(&path)?;
        tracing::warn!(
            ?path,
            "somebody else has uxfrm's abstract socket names: files stand in for them"
        );
        Self::of(listener, Some(SocketFile::of(path)))
    }

    fn of(listener: UnixListener, file: Option<SocketFile>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, _file: file })
    }

    /// Answers up to a turn of those that wait; while more do, the descriptor stays readable. A
    /// client that may not ask or does not read gets nothing and holds up nobody.
    pub(crate) fn answer(&self, mut statistics: impl FnMut() -> Statistics) {
        for _ in 0..TURN {
            let Ok((client, _)) = self.listener.accept() else { return };
            if let Err(error) = serve(client, &mut statistics) {
                tracing::debug!(%error, "a client of the counters went away");
            }
        }
    }
}

impl AsFd for StatSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Which process has a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameHolder {
    /// Root or our own user.
    Ours,
    /// A gateway of another user's.
    Gateway(SocketOwner),
    /// Somebody else, or nobody knows.
    Stranger,
}

fn holder() -> io::Result<NameHolder> {
    let address = UnixAddr::new_abstract(STAT_NAME)?;
    for _ in 0..LOOKS {
        match fallback_socket::probe(&address, SockType::Stream) {
            Ok(stream) if check_listener(&stream).is_ok() => return Ok(NameHolder::Ours),
            Ok(stream) => {
                return Ok(
                    SocketOwner::of(&stream).map_or(NameHolder::Stranger, NameHolder::Gateway)
                );
            }
            // Somebody starts, or has let its queue fill.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(NameHolder::Stranger)
}

fn serve(mut client: UnixStream, statistics: &mut impl FnMut() -> Statistics) -> io::Result<()> {
    let peer = getsockopt(&client, PeerCredentials)?;
    if peer.uid() != 0 && peer.uid() != Uid::effective().as_raw() {
        return Ok(());
    }
    let Statistics { counts, tunnels, caches, notices } = statistics();
    let (kernel, reasons) = (counts.xfrm_stat(), counts.reasons());
    let text = format!("{kernel}\0{reasons}{tunnels}\0{caches}\0{notices}");
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    client.write_all(text.as_bytes())
}

/// A line for each worker, direction and family, about a second old at the most; what was never
/// used is left out.
pub(crate) fn caches(workers: &[Arc<SharedCacheStats>]) -> String {
    let mut text = String::from(
        "worker\tdirection\tfamily\tentries\troom\tbytes\thits\tmisses\tstale\tevicted\tbypassed\n",
    );
    for (worker, counts) in workers.iter().enumerate() {
        for (direction, families) in ["out", "in"].into_iter().zip(counts.read()) {
            for (family, stats) in ["ipv4", "ipv6"].into_iter().zip(families) {
                if stats.hits + stats.misses + stats.stale + stats.bypassed > 0 {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "{worker}\t{direction}\t{family}\t{}", line(&stats));
                }
            }
        }
    }
    text
}

fn line(stats: &CacheStats) -> String {
    let CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed } = stats;
    format!("{entries}\t{room}\t{bytes}\t{hits}\t{misses}\t{stale}\t{evicted}\t{bypassed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket at a name of the test's own, and its address.
    fn socket_at(name: &[u8]) -> (StatSocket, SocketAddr) {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap());
        let socket = StatSocket::of(listener.unwrap(), None).unwrap();
        (socket, SocketAddr::from_abstract_name(name).unwrap())
    }

    #[test]
    fn stats_socket_flood_gets_one_turn() {
        let (socket, address) = socket_at(b"uxfrm-test/turns");
        // Each that is answered connects again before the next is taken, as a flood would.
        let first: Vec<_> = (0..2).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
        let (mut answered, mut flood) = (0, first);
        socket.answer(|| {
            answered += 1;
            assert!(answered <= TURN, "nobody else's requests are served meanwhile");
            flood.push(UnixStream::connect_addr(&address).unwrap());
            Statistics::default()
        });
        assert_eq!(answered, TURN);
    }

    #[test]
    fn cache_table_has_line_per_used_cache() {
        let workers = [Arc::default(), Arc::default()];
        assert_eq!(caches(&workers).lines().count(), 1, "a head and nothing else");
        assert_eq!(
            line(&CacheStats { hits: 3, ..CacheStats::default() }),
            "0\t0\t0\t3\t0\t0\t0\t0"
        );
    }
}
