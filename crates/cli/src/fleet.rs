//! `uxfrm fleet`: starts `uxfrm-fleet`. What `fleet apply` is given is read here first: the lines
//! of `ip xfrm`, which that program does not know.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use uxfrm_daemon::batch::{self, Command};
use uxfrm_engine::{Direction, SaConfig};
use uxfrm_fleet::desired::{DesiredFile, DesiredTunnel, Lines};
use uxfrm_fleet_options::{FleetCommand, FleetOptions};
use zeroize::Zeroizing;

use crate::companion::FLEET;

/// Checks what can be checked here, and starts it.
pub(crate) fn execute(options: &FleetOptions) -> anyhow::Result<()> {
    // What comes by the standard input is read once; gateways refuse what is wrong with it.
    if let FleetCommand::Apply(apply) = &options.command
        && apply.file != Path::new("-")
    {
        check(&apply.file)?;
    }
    FLEET.execute()
}

fn check(path: &Path) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map(Zeroizing::new).with_context(|| name.clone())?;
    let file = DesiredFile::parse(&text).with_context(|| name.clone())?;
    let errors = errors(&name, &file);
    for error in &errors {
        // An error on stderr itself cannot be reported.
        let _closed = writeln!(io::stderr(), "{error}");
    }
    anyhow::ensure!(errors.is_empty(), "{name}: {} errors; nothing was applied", errors.len());
    Ok(())
}

/// What is wrong with the lines, of all pools and tunnels.
fn errors(name: &str, file: &DesiredFile) -> Vec<String> {
    let mut errors = Vec::new();
    for (pool, desired) in &file.pools {
        let place = format!("{name}: pool `{pool}`");
        errors.extend(wrong_lines(&place, &desired.lines, |_| {
            Some("a state has sequence numbers: it is a tunnel's, not a pool's")
        }));
        for (tunnel, desired) in &desired.tunnels {
            errors.extend(wrong_tunnel(&format!("{name}: tunnel `{tunnel}`"), desired));
        }
    }
    errors
}

fn wrong_tunnel(place: &str, tunnel: &DesiredTunnel) -> Vec<String> {
    let shared = wrong_lines(place, &tunnel.lines, wrong_state);
    let children = tunnel.children.iter().enumerate().flat_map(|(number, lines)| {
        wrong_lines(&format!("{place}, child {number}"), lines, wrong_state)
    });
    shared.into_iter().chain(children).collect()
}

/// Why a gateway would not lease numbers for a state.
fn wrong_state(state: &SaConfig) -> Option<&'static str> {
    let window = state.replay.window;
    match (state.direction, window) {
        _ if state.offload.is_some() => Some("no device leases sequence numbers: no `offload`"),
        (None, _) => Some("`dir in` or `dir out` is missing: they lease different numbers"),
        (Some(Direction::In), 0) => Some("`dir in` needs a replay-window of 1 or more"),
        (Some(Direction::Out), 1..) => Some("`dir out` has no replay-window"),
        (Some(Direction::Forward), _) => Some("`dir fwd` is no direction of a state"),
        (Some(Direction::In), 1..) | (Some(Direction::Out), 0) => None,
    }
}

fn wrong_lines(
    place: &str,
    lines: &Lines,
    wrong: impl Fn(&SaConfig) -> Option<&'static str>,
) -> Vec<String> {
    let commands = match batch::parse(place, lines.as_str()) {
        Ok(commands) => commands,
        Err(errors) => return errors.iter().map(ToString::to_string).collect(),
    };
    let wrong_command = |command: &Command| match command {
        Command::StateAdd(state) => wrong(state),
        Command::PolicyAdd(_) => None,
        Command::StateUpdate(_)
        | Command::StateAllocSpi(_)
        | Command::StateDelete(_)
        | Command::StateGet(_)
        | Command::StateDeleteAll(_)
        | Command::StateList(_)
        | Command::StateListWithoutKeys(_)
        | Command::StateFlush { .. }
        | Command::StateCount
        | Command::PolicyUpdate(_)
        | Command::PolicyDelete(_)
        | Command::PolicyGet(_)
        | Command::PolicyDeleteAll(_)
        | Command::PolicyList(_)
        | Command::PolicyFlush { .. }
        | Command::PolicyCount
        | Command::SetHthresh { .. }
        | Command::SetDefault { .. }
        | Command::GetDefault => Some("lines say what is to be there: `add`"),
    };
    let located = commands.iter().filter_map(|line| Some((line, wrong_command(&line.value)?)));
    located.map(|(line, why)| format!("{place}: line {}: {why}", line.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "ip xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 1 mode tunnel \
                         aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128";

    fn told(lines: &str) -> String {
        let text = format!("[tunnels.a]\nlines = \"{lines}\"\n");
        errors("f.toml", &DesiredFile::parse(&text).unwrap()).join("; ")
    }

    #[test]
    fn states_by_table() {
        for (words, said) in [
            ("dir in replay-window 64", ""),
            ("dir out", ""),
            ("", "f.toml: tunnel `a`: line 1: `dir in` or `dir out` is missing"),
            ("dir in", "f.toml: tunnel `a`: line 1: `dir in` needs a replay-window"),
            ("dir out replay-window 64", "line 1: `dir out` has no replay-window"),
            ("dir in replay-window x", "f.toml: tunnel `a`:1:"),
        ] {
            let told = told(&format!("{STATE} {words}"));
            assert!(told.contains(said) && told.is_empty() == said.is_empty(), "{words}: {told}");
            assert!(!told.contains("0102"), "{told}");
        }
        assert!(told("ip xfrm state flush").contains("lines say what is to be there: `add`"));
    }

    #[test]
    fn a_pool_has_no_states() {
        let text = format!("[pools.p]\nlines = \"{STATE} dir out\"\n");
        let told = errors("f.toml", &DesiredFile::parse(&text).unwrap());
        assert!(told.len() == 1 && told[0].contains("pool `p`: line 1: a state has"), "{told:?}");
    }
}
