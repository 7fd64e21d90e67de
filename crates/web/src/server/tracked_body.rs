//! An answer's body, of which a connection knows when it is over.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::shared_places::{CurrentNeed, Need};

/// A body; with its end the connection's place is needed less.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    need: CurrentNeed,
}

impl TrackedBody {
    /// This one, of a connection with this need.
    pub(super) fn new(body: Body, need: CurrentNeed) -> Self {
        Self { body, need }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        // Who has not shown that he may ask is no more welcome for an answer.
        if self.need.now() == Need::Busy {
            self.need.set(Need::Idle);
        }
    }
}
