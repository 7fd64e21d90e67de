//! A client of `uxfrm xfrm sync`.

use uxfrm_control::greeting::Dialect;
use uxfrm_control_client::reload::{
    ReloadAnswer, ReloadRequest, SyncCourse, SyncOthers, SyncRequest,
};

use super::{Run, deliver};
use crate::protocol::{ClientId, Identity, Outbox, Protocol};

/// Its connection.
const SYNC: ClientId = ClientId(9);

impl Run {
    /// A client sends a text for `uxfrm xfrm sync`.
    pub(in crate::simulation) fn begin_sync(&mut self, text: &str, others: SyncOthers) {
        let (port, dialect) = (100 + SYNC.0, Dialect::Reload);
        let identity = Identity { port, groups: 0, options: 0, dialect, process: port };
        let (source, bytes) = ("text".to_owned(), text.len() as u64);
        let request = SyncRequest { source, bytes, course: SyncCourse::Apply, others };
        let request = serde_json::to_vec(&ReloadRequest::Sync(request)).unwrap();
        let (mut serving, mut outbox) = (self.serving(), Outbox::default());
        serving.join(SYNC, identity);
        for datagram in std::iter::once(&request[..]).chain(text.as_bytes().chunks(8192)) {
            serving.handle(SYNC, datagram, &mut outbox);
        }
        let mut answers = Vec::new();
        deliver(&mut outbox, &mut answers);
        let told: Vec<_> = answers.iter().map(|(_, datagram)| reload_answer(datagram)).collect();
        assert_eq!(told, [ReloadAnswer::Ready]);
    }

    /// A part of it is read; what others are told, and the last that its client is, if it is.
    pub(in crate::simulation) fn read_on(&mut self) -> (Vec<(u32, Vec<u8>)>, Option<ReloadAnswer>) {
        let (mut outbox, mut answers) = (Outbox::default(), Vec::new());
        self.serving().read_on(&mut outbox);
        deliver(&mut outbox, &mut answers);
        let (own, others): (Vec<_>, _) =
            answers.into_iter().partition(|(client, _)| *client == SYNC.0);
        (others, own.last().map(|(_, datagram)| reload_answer(datagram)))
    }

    /// The client that has sent a text leaves.
    pub(in crate::simulation) fn leave_sync(&mut self) {
        self.serving().leave(SYNC);
    }
}

fn reload_answer(datagram: &[u8]) -> ReloadAnswer {
    serde_json::from_slice(datagram).unwrap()
}
