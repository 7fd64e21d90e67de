//! The channel of events from workers to the key manager.

use std::sync::mpsc::Sender;

use uxfrm_engine::Event;
use uxfrm_io::poll::Waker;

/// Sends an engine's events and wakes the receiver: packets may wait for the outcome of an acquire.
#[derive(Clone, Debug)]
pub struct Events {
    sender: Sender<Event>,
    waker: Waker,
}

impl Events {
    /// Events go through `sender`; `waker` wakes the receiver.
    #[must_use]
    pub fn new(sender: Sender<Event>, waker: Waker) -> Self {
        Self { sender, waker }
    }

    /// Wakes the receiver without an event.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Sends all events; no events, the usual case, cost nothing.
    pub(crate) fn send(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        for event in events.drain(..) {
            // The receiver is gone only while the gateway ends.
            let _ended = self.sender.send(event);
        }
        self.waker.wake();
    }
}
