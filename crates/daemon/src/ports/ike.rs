//! Two threads for each shared UDP port, which carry IKE messages between the workers and IKE
//! daemons ([`uxfrm_io::ike`]).
//!
//! Off the workers because both wait: one for a daemon that is slow to read, the other for daemons
//! that have something to say. They end by themselves when the last worker is gone. A message that
//! no daemon takes is counted as [`DropReason::InIkeUnclaimed`].

use std::{
    io,
    os::unix::fs::lchown,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::SockType;
use uxfrm_engine::{DropReason, Drops};
use uxfrm_io::{
    ike::{Buffer, DeliveryError, IkeDatagram, IkeExchange, name},
    sandbox::{self, AllowedPaths, Confinement},
};

use crate::descriptor_store::DescriptorStore;
use crate::fallback_socket::{self, SocketFile};

/// Messages that may wait for a daemon; what comes while they do is dropped.
const WAITING: usize = 256;

/// Time between two warnings of the same kind.
const STRANGER_WARNINGS: Duration = Duration::from_secs(10);

/// Starts sharing `port`: where its IKE messages go, and the counter of those that nobody takes.
pub(crate) fn share(
    port: u16,
    mark: u32,
    user: Option<u32>,
    descriptors: &mut DescriptorStore,
) -> io::Result<(SyncSender<IkeDatagram>, Arc<Drops>)> {
    let stored = format!("ike {port}");
    let (exchange, file) = match descriptors.take(&stored) {
        Some(socket) => (IkeExchange::of_socket(socket, port, mark, user)?, None),
        None => open(port, mark, user)?,
    };
    let exchange = exchange.with_files(fallback_socket::own())?;
    descriptors.keep(&stored, exchange.socket())?;
    if !exchange.knows_owners() {
        tracing::warn!(
            "this kernel does not tell whose a UNIX socket is (CONFIG_UNIX_DIAG): \
             any local user who takes an IKE daemon's place at port {port} gets its messages"
        );
    }
    let exchange = Arc::new(exchange);
    let drops = Arc::new(Drops::default());
    let (sender, messages) = sync_channel(WAITING);
    let (inwards, counter) = (Arc::clone(&exchange), Arc::clone(&drops));
    start(format!("uxfrm-ike-in-{port}"), move || {
        let _least = sandbox::packets();
        hand_on(&inwards, &messages, &counter);
    })?;
    start(format!("uxfrm-ike-{port}"), move || {
        let _least = confine_beside(file.as_ref());
        send_on(&exchange);
        drop(file);
    })?;
    Ok((sender, drops))
}

/// At the gateway's name for a port, or where a stranger has that, as the counters' name is ours,
/// at the file that stands in for it.
fn open(port: u16, mark: u32, user: Option<u32>) -> io::Result<(IkeExchange, Option<SocketFile>)> {
    let name = name(port);
    let name = name.as_bytes();
    match IkeExchange::open(port, mark, user) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        result => {
            fallback_socket::sweep(name, SockType::Datagram);
            return result.map(|exchange| (exchange, None));
        }
    }
    let path = fallback_socket::make(name, SockType::Datagram)
        .map_err(|error| fallback_socket::refused(name, &error))?;
    let exchange = IkeExchange::open_at(&path, port, mark, user)?;
    let file = SocketFile::of(&path);
    if user.is_some() {
        lchown(path, user, None)?;
    }
    Ok((exchange, Some(file)))
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name).spawn(work).map(drop)
}

/// Whoever has a file removes it in the end.
fn confine_beside(file: Option<&SocketFile>) -> Confinement {
    match file.and_then(SocketFile::directory) {
        None => sandbox::packets(),
        Some(place) => {
            let write = vec![place.to_owned()];
            sandbox::control(&[], &AllowedPaths { write, ..AllowedPaths::default() })
        }
    }
}

/// From the workers to the daemons, until there are no workers.
fn hand_on(exchange: &IkeExchange, messages: &Receiver<IkeDatagram>, drops: &Drops) {
    let mut strangers = Strangers::default();
    for message in messages {
        if let Err(error) = exchange.deliver(&message) {
            drops.count(DropReason::InIkeUnclaimed);
            strangers.note(&error);
            tracing::debug!(%error, path = ?message.path, "no IKE daemon takes a message");
        }
    }
    exchange.close();
}

/// Warnings of users who have a daemon's name, one in [`STRANGER_WARNINGS`].
#[derive(Debug, Default)]
struct Strangers(Option<Instant>);

impl Strangers {
    fn note(&mut self, error: &DeliveryError) {
        match error {
            DeliveryError::Stranger { .. } | DeliveryError::Unreachable { .. } => {}
            DeliveryError::Unclaimed | DeliveryError::Kernel(_) => return,
        }
        if self.0.is_none_or(|last| last.elapsed() >= STRANGER_WARNINGS) {
            self.0 = Some(Instant::now());
            tracing::warn!("an IKE message is not delivered: {error}");
        }
    }
}

/// From the daemons to the network, until the exchange is closed.
fn send_on(exchange: &IkeExchange) {
    let mut buffer = Buffer::default();
    loop {
        match exchange.next(&mut buffer) {
            Ok(Some(message)) => {
                if let Err(error) = exchange.send(&message) {
                    tracing::debug!(%error, path = ?message.path, "an IKE message can't be sent");
                }
            }
            Ok(None) => return,
            Err(error) => return tracing::error!(%error, "IKE daemons can't be heard any more"),
        }
    }
}
