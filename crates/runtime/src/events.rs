//! The way of events from lanes to whoever looks after key managers.

use std::sync::mpsc::Sender;

use uxfrm_engine::Event;
use uxfrm_io::poll::Waker;

/// Where a lane leaves its engine's events. Whoever takes them is woken: packets may wait for what becomes of an acquire.
#[derive(Clone, Debug)]
pub struct Events {
    sender: Sender<Event>,
    waker: Waker,
}

impl Events {
    /// Events go through `sender` to who waits at the poller of `waker`.
    #[must_use]
    pub fn new(sender: Sender<Event>, waker: Waker) -> Self {
        Self { sender, waker }
    }

    /// Something is to be looked at that is no event.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Hands all of them over. None, which is the usual, costs nothing.
    pub(crate) fn send(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        for event in events.drain(..) {
            // Nobody listens any more only while the gateway ends.
            let _ended = self.sender.send(event);
        }
        self.waker.wake();
    }
}
