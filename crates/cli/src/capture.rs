//! `uxfrm capture`: packets of the running gateway, as lines, as JSON, or as a pcapng file.

mod file;
mod keys;

use std::{
    io::{self, Write as _},
    path::Path,
    thread,
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use uxfrm_control_client::packet_watch::PacketWatch;
use uxfrm_io::signal::{SignalRequest, Signals};
use uxfrm_status::{
    capture::{CaptureQuery, CaptureReport, CaptureSide, CapturedPacketStatus},
    quantity::things,
    text::packets::packet_line,
};

use self::file::CaptureFile;
use crate::{arguments::CaptureOptions, environment, status::colour};

/// Between two questions for what has come, where the last one was answered in full.
pub(crate) const ROUND: Duration = Duration::from_millis(50);

/// What ends a capture or trace from the other end.
pub(crate) const GONE: &str = "the gateway ends this: it has ended, handed over to another process, \
                               or was asked nothing for a minute";

/// Where packets go.
enum PacketOutput {
    Lines(TimeZone),
    Json,
    File(Box<CaptureFile>),
}

/// Captures until it is ended, or so many packets have come.
pub(crate) fn execute(options: &CaptureOptions) -> anyhow::Result<()> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    if let Some(path) = &options.keys {
        keys::write(path, options)?;
    }
    let query = query(options);
    let mut left = options.count.unwrap_or(u64::MAX);
    if left == 0 {
        return Ok(());
    }
    let signals = signals(options)?;
    let mut watch = PacketWatch::open()?;
    let mut sink = None;
    let mut latest = None;
    while left > 0 {
        let Some(mut report) = watch.capture(&query)? else {
            say(GONE);
            break;
        };
        let sink = match &mut sink {
            Some(sink) => sink,
            none => none.insert(open(options, &report)?),
        };
        report.packets.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= report.packets.len() as u64;
        sink.write(&report.packets)?;
        let has_more = report.more;
        latest = Some(report);
        if is_ended(signals.as_ref())? {
            break;
        }
        if !has_more && left > 0 {
            thread::sleep(ROUND);
        }
    }
    finish(sink, latest.as_ref())
}

fn query(options: &CaptureOptions) -> CaptureQuery {
    let sides = [
        (options.plain, CaptureSide::Plain),
        (options.wire, CaptureSide::Wire),
        (options.drops, CaptureSide::Drops),
    ];
    CaptureQuery {
        sides: sides
            .into_iter()
            .filter_map(|(is_wanted, side)| is_wanted.then_some(side))
            .collect(),
        filter: options.filter.query(),
        snaplen: Some(options.snaplen),
        rate: Some(options.rate),
    }
}

/// With a file of its own a capture ends in an orderly way. Who reads from a pipe may keep it
/// waiting, so there Ctrl-C ends it at once.
fn signals(options: &CaptureOptions) -> anyhow::Result<Option<Signals>> {
    let has_file = options.write.as_deref().is_some_and(|path| path != Path::new("-"));
    Ok(if has_file { Some(Signals::block()?) } else { None })
}

fn is_ended(signals: Option<&Signals>) -> io::Result<bool> {
    let request = signals.map(Signals::next).transpose()?.flatten();
    Ok(match request {
        Some(SignalRequest::Stop | SignalRequest::Reload) => true,
        None => false,
    })
}

/// Opens the output once the gateway has agreed, so that a refusal leaves no file.
fn open(options: &CaptureOptions, report: &CaptureReport) -> anyhow::Result<PacketOutput> {
    Ok(match &options.write {
        Some(path) => PacketOutput::File(Box::new(CaptureFile::create(
            path,
            &report.interfaces,
            options.snaplen,
        )?)),
        None if options.json => PacketOutput::Json,
        None => PacketOutput::Lines(TimeZone::system()),
    })
}

/// Says what is not in the output.
fn finish(sink: Option<PacketOutput>, report: Option<&CaptureReport>) -> anyhow::Result<()> {
    let Some(CaptureReport { lost, over_rate, .. }) = report else { return Ok(()) };
    if let Some(PacketOutput::File(mut file)) = sink {
        say(&format!("{} captured", things(file.packets(), "packet", "packets")));
        file.finish(lost + over_rate)?;
    }
    if *lost > 0 {
        let lost = things(*lost, "packet", "packets");
        say(&format!("{lost} lost: more came than were written"));
    }
    if *over_rate > 0 {
        let left = things(*over_rate, "packet", "packets");
        say(&format!("{left} left out: more than `--rate` a second"));
    }
    Ok(())
}

fn say(words: &str) {
    // The packets matter more than a closed stderr.
    let _closed = writeln!(io::stderr(), "{words}");
}

impl PacketOutput {
    fn write(&mut self, packets: &[CapturedPacketStatus]) -> anyhow::Result<()> {
        match self {
            Self::File(file) => Ok(file.write(packets)?),
            Self::Json => {
                let mut out = io::stdout().lock();
                for packet in packets {
                    writeln!(out, "{}", serde_json::to_string(packet)?)?;
                }
                Ok(out.flush()?)
            }
            Self::Lines(zone) => {
                let mut out = io::stdout().lock();
                for packet in packets {
                    let line = packet_line(packet, |at| time_of_day(at, zone), colour());
                    out.write_all(line.as_bytes())?;
                }
                Ok(out.flush()?)
            }
        }
    }
}

/// Hour, minute and second here, with microseconds.
pub(crate) fn time_of_day(at_ns: u64, zone: &TimeZone) -> String {
    Timestamp::from_nanosecond(at_ns.into()).map_or_else(
        |_| String::new(),
        |at| at.to_zoned(zone.clone()).strftime("%H:%M:%S%.6f").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_has_microseconds() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(time_of_day(1_000_123_999, &zone), "02:00:01.000123");
    }
}
