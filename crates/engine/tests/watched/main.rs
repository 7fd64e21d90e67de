//! Who watches packets sees what happened to them, and changes nothing.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod captures;
mod traces;

use uxfrm_engine::{PacketTrace, TapFilter, TraceReader};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{TestGateway, packets};

/// A packet of the flow of that source port.
fn datagram(port: u16) -> PacketBuf {
    packets::udp(&format!("10.1.0.1:{port}"), "10.2.0.1:9", &port.to_be_bytes())
}

/// Traces that a gateway makes until they are dropped.
struct Traces(TraceReader);

impl Traces {
    fn of(gateway: &TestGateway, filter: TapFilter) -> Self {
        Self(TraceReader::new(&[gateway.worker.tap()], filter, 1000))
    }

    fn all(&self) -> Vec<PacketTrace> {
        std::iter::from_fn(|| self.0.take()).map(|trace| *trace).collect()
    }

    fn only(&self) -> PacketTrace {
        let mut all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }
}
