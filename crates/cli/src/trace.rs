//! `uxfrm trace`: the next packets through the running gateway, with what each stage decided.

use std::{
    io::{self, Write as _},
    thread,
};

use jiff::tz::TimeZone;
use uxfrm_control_client::packet_watch::PacketWatch;
use uxfrm_status::{
    text::packets,
    trace::{TraceQuery, TraceReport},
};

use crate::{
    arguments::TraceOptions,
    capture::{GONE, ROUND, time_of_day},
    environment,
    status::colour,
};

/// Traces until so many packets have come.
pub(crate) fn execute(options: &TraceOptions) -> anyhow::Result<()> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    let query = TraceQuery { packets: options.packets, filter: options.filter.query() };
    let mut watch = PacketWatch::open()?;
    let zone = TimeZone::system();
    let mut warned_of = 0;
    loop {
        let Some(report) = watch.trace(&query)? else {
            anyhow::bail!(GONE);
        };
        print(&report, options, &zone)?;
        if report.passed_over > 0 && warned_of == 0 {
            warned_of = report.passed_over;
            // The traces matter more than a closed stderr.
            let _closed = writeln!(
                io::stderr(),
                "more packets come than are looked at: narrow it down by --peer or --spi"
            );
        }
        if report.left == 0 && report.traces.is_empty() {
            return Ok(());
        }
        if report.traces.is_empty() {
            thread::sleep(ROUND);
        }
    }
}

fn print(report: &TraceReport, options: &TraceOptions, zone: &TimeZone) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for trace in &report.traces {
        if options.json {
            writeln!(out, "{}", serde_json::to_string(trace)?)?;
        } else {
            let text = packets::trace(trace, |at| time_of_day(at, zone), colour());
            writeln!(out, "{text}")?;
        }
    }
    Ok(out.flush()?)
}
