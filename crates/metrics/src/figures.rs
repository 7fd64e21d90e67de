//! The documents of one scrape.

use uxfrm_status::{
    counters::CounterReport,
    drops::{DropScope, DropTallyQuery, DropTallyReport},
    gateway::{GatewayStatus, StatusQuery, TunnelOrder},
    protocol::StatusRequest,
    workers::WorkerReport,
};

/// Tunnels that have series of their own, unless somebody wants more or less.
pub const DEFAULT_TUNNELS: u32 = 1000;

/// What a gateway has told for one page; nothing, where it does not answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(pub(crate) Option<Box<Documents>>);

/// What a gateway has told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Documents {
    pub(crate) status: GatewayStatus,
    pub(crate) counters: CounterReport,
    pub(crate) devices: DropTallyReport,
    pub(crate) workers: WorkerReport,
}

impl Figures {
    /// What to ask the gateway: in this order, and on one connection, as it takes no longer then.
    /// `tunnels` are to have series of their own at the most.
    #[must_use]
    pub fn requests(tunnels: u32) -> [StatusRequest; 4] {
        let query = StatusQuery {
            limit: Some(tunnels),
            order: TunnelOrder::Traffic,
            ..StatusQuery::default()
        };
        [
            StatusRequest::Status(query),
            StatusRequest::Counters,
            StatusRequest::DropTallies(DropTallyQuery { by: DropScope::Device }),
            StatusRequest::Workers,
        ]
    }

    /// What it has told: its tunnels, its counters, drops by device, its workers.
    #[must_use]
    pub fn new(
        status: GatewayStatus,
        counters: CounterReport,
        devices: DropTallyReport,
        workers: WorkerReport,
    ) -> Self {
        Self(Some(Box::new(Documents { status, counters, devices, workers })))
    }

    /// Nothing: no gateway answers.
    #[must_use]
    pub const fn silent() -> Self {
        Self(None)
    }
}
