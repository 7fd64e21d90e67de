//! What a client watches: a capture, or a trace. It ends with the client.

use std::sync::Arc;

use uxfrm_engine::{PacketTap, Prefix, Published, Settings, Spi, TapFilter};
use uxfrm_status::{
    capture::PacketQuery,
    gateway::{GatewayIdentity, PeerFilter},
    protocol::{RequestRefusal, StatusAnswer, StatusRequest},
};

use super::{access::Access, board::Posted, capture::CaptureSession, trace::TraceSession};

/// Clients that watch at a time: each costs the workers a copy of what it wants.
const WATCHERS: usize = 4;

/// What a client watches.
#[derive(Debug)]
pub(super) enum Watch {
    /// Packets at their ports.
    Capture(Box<CaptureSession>),
    /// Packets on their way.
    Trace(TraceSession),
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watcher<'a> {
    /// What it may be told.
    pub(super) access: Access,
    /// How many others watch.
    pub(super) others: usize,
    /// What the control thread has told.
    pub(super) posted: &'a Posted,
}

/// Where packets come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketSource<'a> {
    pub(super) taps: &'a [Arc<PacketTap>],
    pub(super) published: &'a Published,
    pub(super) identity: &'a GatewayIdentity,
    /// A worker's.
    pub(super) settings: &'a Settings,
}

impl Watch {
    /// Begins what the request asks for, unless `watch` is that already, and tells what has come.
    /// `None` for a request that watches nothing.
    pub(super) fn answer(
        watch: &mut Option<Self>,
        request: &StatusRequest,
        watcher: Watcher<'_>,
        source: PacketSource<'_>,
    ) -> Option<Result<StatusAnswer, RequestRefusal>> {
        match request {
            StatusRequest::Counters
            | StatusRequest::Status(_)
            | StatusRequest::Drops(_)
            | StatusRequest::DropTallies(_)
            | StatusRequest::Workers
            | StatusRequest::Why(_) => None,
            StatusRequest::Capture(query) => Some(admit(&watcher).map(|()| {
                let mut session = match watch.take() {
                    Some(Self::Capture(session)) if session.is_for(query) => session,
                    Some(Self::Capture(_) | Self::Trace(_)) | None => {
                        Box::new(CaptureSession::new(query, source))
                    }
                };
                let report = session.report(source, watcher.posted);
                *watch = Some(Self::Capture(session));
                StatusAnswer::Capture(report)
            })),
            StatusRequest::Trace(query) => Some(admit(&watcher).map(|()| {
                let session = match watch.take() {
                    Some(Self::Trace(session)) if session.is_for(query) => session,
                    Some(Self::Capture(_) | Self::Trace(_)) | None => {
                        TraceSession::new(query, source)
                    }
                };
                let report = session.report(source, watcher.posted);
                *watch = Some(Self::Trace(session));
                StatusAnswer::Trace(report)
            })),
        }
    }
}

/// Whether somebody may watch.
fn admit(watcher: &Watcher<'_>) -> Result<(), RequestRefusal> {
    match watcher.access {
        Access::Full if watcher.others < WATCHERS => Ok(()),
        Access::Full => Err(RequestRefusal::new(format!(
            "{WATCHERS} captures and traces run already, the most at a time"
        ))),
        Access::Group { .. } => Err(RequestRefusal::new(
            "packets are shown to root and the gateway's own user alone, not to the group of \
             `[status]`",
        )),
    }
}

/// Which packets a query selects.
pub(super) fn filter(query: &PacketQuery) -> TapFilter {
    TapFilter {
        host: query.host.as_ref().and_then(prefix),
        protocol: query.protocol,
        port: query.port,
        peer: query.peer.as_ref().and_then(prefix),
        spi: query.spi.map(Spi),
    }
}

fn prefix(filter: &PeerFilter) -> Option<Prefix> {
    let (address, length) = filter.prefix();
    // A filter's length was checked when it was read.
    Prefix::new(address, length).ok()
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, Moment, Output, Worker};
    use uxfrm_packet::{Batch, PacketBuf, Pool};
    use uxfrm_status::{
        capture::{CaptureQuery, CaptureReport, CaptureSide},
        explanation::FlowOutcome,
        trace::{TraceOutcome, TraceQuery},
    };

    use super::*;

    /// A worker and what its packets are told by.
    struct Site {
        worker: Worker,
        published: Published,
        taps: Vec<Arc<PacketTap>>,
        identity: GatewayIdentity,
        posted: Posted,
        watch: Option<Watch>,
    }

    impl Site {
        fn new() -> Self {
            let database = Database::new(Backend::Portable, 1);
            let worker = Worker::new(Settings::default(), &database.published()).unwrap();
            let config = crate::config::Config::parse("test", "").unwrap();
            Self {
                taps: vec![worker.tap()],
                worker,
                published: database.published(),
                identity: crate::status::identity(std::path::Path::new("x"), &config),
                posted: Posted::default(),
                watch: None,
            }
        }

        fn ask(
            &mut self,
            request: &StatusRequest,
            access: Access,
        ) -> Option<Result<StatusAnswer, RequestRefusal>> {
            let Self { taps, published, identity, posted, watch, .. } = self;
            let settings = &Settings::default();
            let watcher = Watcher { access, others: 0, posted };
            Watch::answer(
                watch,
                request,
                watcher,
                PacketSource { taps, published, identity, settings },
            )
        }

        fn capture(&mut self, query: &CaptureQuery) -> CaptureReport {
            let request = StatusRequest::Capture(query.clone());
            match self.ask(&request, Access::Full) {
                Some(Ok(StatusAnswer::Capture(report))) => report,
                other => panic!("{other:?}"),
            }
        }

        fn drop_one(&mut self) {
            let mut batch: Batch = [PacketBuf::from_slice(b"not IP")].into_iter().collect();
            let (mut pool, mut out) = (Pool::new(), Output::default());
            self.worker.outbound_traced(
                &mut batch,
                uxfrm_engine::TracePort::Host,
                Moment(7),
                &mut pool,
                &mut out,
            );
        }
    }

    #[test]
    fn members_of_the_group_watch_nothing() {
        let mut site = Site::new();
        let capture = StatusRequest::Capture(CaptureQuery::default());
        let trace = StatusRequest::Trace(TraceQuery { packets: 1, filter: PacketQuery::default() });
        for request in [&capture, &trace] {
            let refusal = site.ask(request, Access::Group { user: 1000 }).unwrap().unwrap_err();
            assert!(refusal.message.contains("root and the gateway's own user alone"));
            assert!(!site.taps[0].is_armed());
            assert!(site.ask(request, Access::Full).unwrap().is_ok());
            site.watch = None;
            assert!(!site.taps[0].is_armed(), "it ends with the client");
        }
        assert!(site.ask(&StatusRequest::Counters, Access::Full).is_none());
    }

    #[test]
    fn same_query_goes_on_and_another_begins_anew() {
        let mut site = Site::new();
        let all = CaptureQuery::default();
        let names: Vec<_> = site.capture(&all).interfaces.into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["uxfrm0", "wire", "drops"]);
        site.drop_one();
        let report = site.capture(&all);
        let [packet] = &report.packets[..] else { panic!("{report:?}") };
        assert_eq!((packet.side, packet.verdict), (CaptureSide::Drops, Some(FlowOutcome::Dropped)));
        assert_eq!(packet.reason.as_deref(), Some("out_malformed"));
        assert_eq!((&packet.bytes.0[..], packet.length), (&b"not IP"[..], 6));
        assert_eq!(site.capture(&all).packets, []);
        site.drop_one();
        let plain = CaptureQuery { sides: vec![CaptureSide::Plain], ..all.clone() };
        assert_eq!(site.capture(&plain).interfaces.len(), 1);
        assert_eq!(site.capture(&all).packets, [], "that was another capture's");
    }

    #[test]
    fn trace_is_told_until_its_packets_have_come() {
        let mut site = Site::new();
        let request =
            StatusRequest::Trace(TraceQuery { packets: 2, filter: PacketQuery::default() });
        for (left, traces) in [(2, 0), (1, 1), (0, 1), (0, 0)] {
            let Some(Ok(StatusAnswer::Trace(report))) = site.ask(&request, Access::Full) else {
                panic!("a trace")
            };
            assert_eq!((report.left, report.traces.len()), (left, traces));
            for trace in &report.traces {
                assert_eq!(trace.outcome, TraceOutcome::Dropped);
                assert_eq!(trace.reason.as_deref(), Some("out_malformed"));
                assert_eq!(trace.steps.last().unwrap().stage, "drop");
            }
            site.drop_one();
        }
    }
}
