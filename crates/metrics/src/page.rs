//! The text of a page.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, prometheus_text, text},
    registry::Registry,
};

use crate::{
    catalogue::UP,
    device,
    figures::{Documents, Figures},
    format::TextFormat,
    gateway, kernel,
    label::Labels,
    link, sample, state, tunnel, worker,
};

/// The page of what a gateway has told.
#[must_use]
pub fn page(figures: Figures, format: TextFormat) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let mut page = String::new();
    let written = match format {
        TextFormat::Prometheus => prometheus_text::encode(&mut page, &registry),
        TextFormat::OpenMetrics => text::encode(&mut page, &registry),
    };
    debug_assert!(written.is_ok(), "writing to a string does not fail");
    page
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let is_up = self.0.is_some();
        sample::write(&mut encoder, &UP, [(Labels::new(), is_up.into())])?;
        self.0.as_ref().map_or(Ok(()), |documents| write(&mut encoder, documents))
    }
}

fn write(encoder: &mut DescriptorEncoder<'_>, documents: &Documents) -> fmt::Result {
    let Documents { status, counters, devices, workers } = documents;
    gateway::write(encoder, status)?;
    gateway::write_drops(encoder, counters)?;
    worker::write(encoder, workers)?;
    device::write(encoder, status, devices)?;
    device::write_caches(encoder, counters)?;
    link::write(encoder, counters)?;
    let tunnels = tunnel::named(status);
    tunnel::write(encoder, status, &tunnels)?;
    state::write(encoder, &tunnels)?;
    kernel::write(encoder, counters)
}
