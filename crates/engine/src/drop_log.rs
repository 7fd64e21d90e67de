//! A worker's drops: counted by reason and by subject, and sampled as records.
//!
//! Each dropped packet is counted. A budget for each reason then decides whether a record
//! is made of it; only for those the packet is copied. All of it is off the path of packets that
//! pass: the worker enters it at [`DropLog::note`] alone.

mod budget;
mod headers;
mod memo;
mod record;
mod records;
mod site;
mod subject;
mod tallies;

use std::sync::Arc;

use crate::packet_tap::{DropNote, EncapPorts, PacketTap, ShowSite, ShownPacket};
use crate::{DropReason, Drops, Moment, Settings, Snapshot};
use budget::DropBudget;
use headers::Headers;
use memo::Memos;

pub use record::{DropRecord, EspEnds, HEAD_BYTES, PacketForm, PacketHead};
pub use records::{DropRecords, RECORDS_KEPT};
pub(crate) use site::{DropSite, EspAround, SeenPacket};
pub use subject::DropSubject;
pub use tallies::{DropTallies, DropTally, MAX_TALLIES, SharedDropTallies};

/// What one worker has dropped.
#[derive(Debug, Default)]
pub(crate) struct DropLog {
    counts: Arc<Drops>,
    tallies: tallies::Tallying,
    published: Arc<SharedDropTallies>,
    budget: DropBudget,
    records: Arc<DropRecords>,
    memos: Memos,
    tap: Arc<PacketTap>,
    /// Drops of the packet that is traced.
    traced: Option<Vec<DropNote>>,
}

/// What drops are explained by: databases, settings and time.
#[derive(Clone, Copy)]
pub(crate) struct DropView<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Moment,
}

impl DropLog {
    /// Counts packets and perhaps records one of them.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(
        &mut self,
        packets: u64,
        reason: DropReason,
        site: &DropSite<'_>,
        view: DropView<'_>,
    ) {
        if let Some(record) = self.count(packets, reason, site, view) {
            self.records.put(record);
        }
    }

    /// The same of packets that the kernel refused to send, with its `errno` as far as it is known.
    #[cold]
    pub(crate) fn note_refused(
        &mut self,
        packets: u64,
        errno: Option<i32>,
        site: &DropSite<'_>,
        view: DropView<'_>,
    ) {
        if let Some(record) = self.count(packets, DropReason::PortRefused, site, view) {
            self.records.put(DropRecord { errno, ..record });
        }
    }

    /// Counts packets; a record of one of them where the budget has it.
    #[inline]
    fn count(
        &mut self,
        packets: u64,
        reason: DropReason,
        site: &DropSite<'_>,
        view: DropView<'_>,
    ) -> Option<DropRecord> {
        if packets == 0 {
            return None;
        }
        self.counts.add(reason, packets);
        let read = || {
            let headers = site.packet.map(|packet| Headers::of(&packet, reason, view.settings));
            headers.unwrap_or_default()
        };
        let headers = memo::needs_headers(reason, site).then(read);
        let subject = self.memos.subject(reason, site, &headers.unwrap_or_default(), view);
        self.tallies.add(reason, subject, packets);
        if self.tap.is_armed() {
            self.show(packets, reason, (site, subject), view);
        }
        let packets = self.budget.take(reason, packets, view.now)?;
        let record = DropRecord::new(reason, packets, view.now);
        let headers = headers.unwrap_or_else(read);
        Some(record.at_site(site, subject, &headers))
    }

    /// Shows a drop to those who watch.
    #[inline(never)]
    fn show(
        &mut self,
        packets: u64,
        reason: DropReason,
        (site, subject): (&DropSite<'_>, DropSubject),
        view: DropView<'_>,
    ) {
        let DropSubject { sa, policy, device } = subject;
        let note = DropNote { reason, packets, sa, policy, device };
        let shown = site.packet.map(|packet| ShownPacket {
            bytes: packet.bytes,
            udp: packet.udp,
            mark: packet.mark,
            if_id: packet.if_id,
            segment: None,
        });
        let ports = EncapPorts(&view.settings.encap_ports);
        let at = ShowSite { at: view.now, worker: view.settings.cpu.0, ports };
        self.tap.show_drop(shown.as_ref(), note, at);
        if let Some(traced) = &mut self.traced {
            traced.push(note);
        }
    }

    /// Remembers drops from now on.
    pub(crate) fn begin_trace(&mut self) {
        self.traced = Some(Vec::new());
    }

    /// The drops since then.
    pub(crate) fn end_trace(&mut self) -> Vec<DropNote> {
        self.traced.take().unwrap_or_default()
    }

    /// Who watches the worker.
    pub(crate) fn tap(&self) -> &Arc<PacketTap> {
        &self.tap
    }

    /// Publishes the counts by subject, if they have changed.
    pub(crate) fn publish(&mut self, snapshot: &Snapshot) {
        if let Some(tallies) = self.tallies.news(&self.counts, &snapshot.sad) {
            self.published.publish(tallies);
        }
    }

    pub(crate) fn counts(&self) -> &Arc<Drops> {
        &self.counts
    }

    pub(crate) fn records(&self) -> &Arc<DropRecords> {
        &self.records
    }

    pub(crate) fn published(&self) -> &Arc<SharedDropTallies> {
        &self.published
    }
}
