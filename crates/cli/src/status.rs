//! `uxfrm status`: the tunnels of the gateway that runs in this network namespace.
//!
//! Exit code: 0 all tunnels are up or idle, 1 something is down, one-way or held, 2 no gateway
//! answers.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
    time::Duration,
};

use uxfrm_control_client::stat;
use uxfrm_status::{
    gateway::{GatewayStatus, StatusQuery},
    text::{Colour, render},
};

use crate::{arguments::StatusOptions, environment, exit_code::UNWELL, left_guard};

/// Has a terminal forget what it shows.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Prints them; with a watch, again and again.
pub(crate) fn execute(options: &StatusOptions) -> anyhow::Result<ExitCode> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    loop {
        let status = read(options)?;
        print(&status, options)?;
        let Some(seconds) = options.watch else { return Ok(code(&status, options)) };
        thread::sleep(Duration::from_secs(seconds));
    }
}

fn read(options: &StatusOptions) -> anyhow::Result<GatewayStatus> {
    let query = StatusQuery { peer: options.peer, ..StatusQuery::default() };
    if !options.all {
        return stat::read_status(&query).map_err(left_guard::told);
    }
    let mut query =
        StatusQuery { limit: Some(StatusQuery::MOST), after: Some(String::new()), ..query };
    let mut status = stat::read_status(&query).map_err(left_guard::told)?;
    while let Some(next) = status.next.take() {
        query.after = Some(next);
        let more = stat::read_status(&query)?;
        status.tunnels.extend(more.tunnels);
        status.next = more.next;
    }
    status.tunnels.sort_by_key(|tunnel| tunnel.health);
    Ok(status)
}

fn print(status: &GatewayStatus, options: &StatusOptions) -> anyhow::Result<()> {
    let mut text = match options.json {
        true => serde_json::to_string(status)? + "\n",
        false => render(status, colour()),
    };
    if let Some(peer) = options.peer.filter(|_| status.totals.tunnels == 0 && !options.json) {
        text += &format!("\nno tunnel with {peer}\n");
    }
    let is_live = options.watch.is_some() && !options.json && io::stdout().is_terminal();
    if is_live {
        text.insert_str(0, CLEAR);
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// For a terminal, unless somebody says otherwise (`NO_COLOR`).
pub(crate) fn colour() -> Colour {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    if io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
        Colour::Ansi
    } else {
        Colour::Plain
    }
}

fn code(status: &GatewayStatus, options: &StatusOptions) -> ExitCode {
    let is_missing = options.peer.is_some() && status.totals.tunnels == 0;
    if status.is_bad() || is_missing { ExitCode::from(UNWELL) } else { ExitCode::SUCCESS }
}
