//! `uxfrm drops`: packets that the gateway of this network namespace dropped.

use std::{
    io::{self, Write as _},
    thread,
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use uxfrm_control_client::stat;
use uxfrm_status::{
    drops::{DropQuery, DropReport, DropScope},
    quantity::things,
    text::drops::{DropText, tallies},
};

use crate::{
    arguments::{DropOwner, DropsOptions},
    environment,
    status::colour,
};

/// Between two questions for what has come.
const ROUND: Duration = Duration::from_secs(1);

/// Prints them; with `--follow` until it is ended.
pub(crate) fn execute(options: &DropsOptions) -> anyhow::Result<()> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    if let Some(by) = options.by {
        return count(by, options);
    }
    let zone = TimeZone::system();
    let mut query = DropQuery { from: None, reason: options.reason.clone(), peer: options.peer };
    let mut text = DropText::default();
    loop {
        let report = stat::read_drops(&query)?;
        print(&report, options, &mut text, &zone)?;
        if !options.follow {
            note(&report);
            return Ok(());
        }
        // A gateway that began anew begins at 0.
        let began_anew = query.from.is_some_and(|from| report.next < from);
        query.from = Some(if began_anew { 0 } else { report.next });
        thread::sleep(ROUND);
    }
}

fn print(
    report: &DropReport,
    options: &DropsOptions,
    text: &mut DropText,
    zone: &TimeZone,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if options.json {
        for record in &report.records {
            writeln!(out, "{}", serde_json::to_string(record)?)?;
        }
    } else {
        let time = |at_ms| time_of_day(at_ms, zone);
        out.write_all(text.render(report, time, colour()).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// What records do not show.
fn note(report: &DropReport) {
    let lost = report.lost;
    let says = match (report.records.is_empty(), lost) {
        (false, 0) => return,
        (true, 0) => "no packet left a record; `uxfrm stat --reasons` counts all".to_owned(),
        _ => format!(
            "{} came too fast to be kept; `uxfrm stat --reasons` counts all packets",
            things(lost, "record", "records")
        ),
    };
    // The records matter more than a closed stderr.
    let _closed = writeln!(io::stderr(), "{says}");
}

fn count(by: DropOwner, options: &DropsOptions) -> anyhow::Result<()> {
    let report = stat::read_drop_tallies(match by {
        DropOwner::Sa => DropScope::Sa,
        DropOwner::Policy => DropScope::Policy,
        DropOwner::Device => DropScope::Device,
    })?;
    if report.tallies.is_empty() && !options.json {
        // An error on stderr itself cannot be reported.
        let _closed = writeln!(io::stderr(), "none until about a second ago");
    }
    let mut out = io::stdout().lock();
    match options.json {
        true => report
            .tallies
            .iter()
            .try_for_each(|tally| Ok(writeln!(out, "{}", serde_json::to_string(tally)?)?)),
        false => Ok(out.write_all(tallies(&report).as_bytes())?),
    }
}

/// Hour, minute and second here.
fn time_of_day(at_ms: u64, zone: &TimeZone) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    at.map_or_else(String::new, |at| at.to_zoned(zone.clone()).strftime("%H:%M:%S%.3f").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_is_the_zones() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(time_of_day(1_000, &TimeZone::UTC), "00:00:01.000");
        assert_eq!(time_of_day(86_400_123, &zone), "02:00:00.123");
        assert_eq!(time_of_day(u64::MAX, &zone), "");
    }
}
