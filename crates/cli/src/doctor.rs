//! `uxfrm doctor`: what of this host is in the way of uxfrm, a line for each check, with the
//! command that mends it. It reads, and changes nothing.
//!
//! A check is a thin reading of the host and a pure judgement over what was read. Exit codes are
//! those of monitoring plug-ins: 0 all is well, 1 a warning, 2 a failure.

mod app_armor;
mod clock;
mod container;
mod finding;
mod forwarding;
mod gateway;
mod ike_daemons;
mod kernel;
mod kernel_esp;
mod modprobe;
mod packet_filter;
mod ports;
mod privileges;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::arguments::DoctorOptions;
use crate::host::Host;
use crate::ike_unit;
use finding::{Finding, Severity};

/// What `-j` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// The worst of all.
    severity: Severity,
    checks: &'a [Finding],
}

/// Looks at this host and prints what is found.
pub(crate) fn execute(options: &DoctorOptions) -> anyhow::Result<ExitCode> {
    let checks = examine(&Host::at(Path::new("/")));
    let severity = checks.iter().map(|check| check.severity).max().unwrap_or(Severity::Ok);
    let mut out = std::io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &Report { severity, checks: &checks })?;
        writeln!(out)?;
    } else {
        checks.iter().try_for_each(|check| writeln!(out, "{check}"))?;
    }
    Ok(ExitCode::from(severity.exit_code()))
}

fn examine(host: &Host) -> Vec<Finding> {
    let units = ike_unit::installed(host, None);
    let mut checks = vec![kernel_esp::check(host, &units), kernel::netlink_xfrm(host)];
    checks.extend(ike_daemons::check(&units));
    checks.extend([kernel::tun(host), packet_filter::check()]);
    checks.extend(packet_filter::forwarded());
    checks.extend([
        kernel::af_xdp(host),
        forwarding::forwarding(host),
        forwarding::rp_filter(host),
        app_armor::check(host),
    ]);
    checks.extend(ports::check(host));
    checks.extend(clock::check(host));
    checks.extend([
        privileges::memory_lock(host),
        privileges::capabilities(host),
        container::check(host),
        kernel::version(host),
        gateway::check(host),
    ]);
    checks
}
