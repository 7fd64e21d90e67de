//! The link to the own gateway: orders go there, and what it says comes as events.

use std::{
    io,
    os::{fd::AsFd as _, unix::net},
    path::PathBuf,
};

use tokio::{
    io::Interest,
    net::UnixDatagram,
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
};
use uxfrm_control_client::leases::{Flushed, LeaseNews, LeaseSession};
use uxfrm_fleet::agent::GatewayOrder;

/// Connects to the gateway.
///
/// # Errors
/// Where none runs, or it does not answer us.
pub async fn connect(control: Option<PathBuf>) -> anyhow::Result<LeaseSession> {
    // It waits for the greeting's answer, in a thread that may.
    tokio::task::spawn_blocking(move || LeaseSession::open(control.as_deref())).await?
}

/// Carries orders there and news back, until the gateway goes; why it went.
pub async fn carry(
    mut session: LeaseSession,
    mut orders: UnboundedReceiver<GatewayOrder>,
    news: UnboundedSender<LeaseNews>,
) -> io::Error {
    match carry_on(&mut session, &mut orders, &news).await {
        Ok(never) => match never {},
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "it ended the session")
        }
        Err(error) => error,
    }
}

enum Never {}

async fn carry_on(
    session: &mut LeaseSession,
    orders: &mut UnboundedReceiver<GatewayOrder>,
    news: &UnboundedSender<LeaseNews>,
) -> io::Result<Never> {
    // The session keeps its descriptor; this one is for waiting.
    let waited =
        UnixDatagram::from_std(net::UnixDatagram::from(session.as_fd().try_clone_to_owned()?))?;
    let mut flushed = Flushed::All;
    loop {
        let interest = match flushed {
            Flushed::All => Interest::READABLE,
            Flushed::Some => Interest::READABLE | Interest::WRITABLE,
        };
        tokio::select! {
            order = orders.recv() => {
                let Some(order) = order else { return Err(io::ErrorKind::BrokenPipe.into()) };
                session.order(&order);
                while let Ok(order) = orders.try_recv() {
                    session.order(&order);
                }
            }
            ready = waited.ready(interest) => drop(ready?),
        }
        // Until nothing is left to read, so that readiness is waited for anew.
        for item in session.receive()? {
            // Nobody listens where the agent ends.
            let _ended = news.send(item);
        }
        used_up(&waited, Interest::READABLE);
        flushed = session.flush()?;
        if flushed == Flushed::Some {
            used_up(&waited, Interest::WRITABLE);
        }
    }
}

/// Has the next wait last until something is ready that was not before.
fn used_up(waited: &UnixDatagram, interest: Interest) {
    let _would_block: io::Result<()> =
        waited.try_io(interest, || Err(io::ErrorKind::WouldBlock.into()));
}
