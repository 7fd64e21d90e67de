//! `--keys FILE`: the keys of the states that are there now, as Wireshark reads them.
//!
//! They come by the control socket, which gives them to root, as `uxfrm xfrm state list` shows
//! them. The file is new and for its owner alone.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use anyhow::Context as _;
use uxfrm_control_client::connect;
use uxfrm_engine::SaConfig;
use uxfrm_netlink::{MessageType, client::DumpedState};
use uxfrm_status::quantity::things;
use uxfrm_xfrm::{
    client::Connection,
    esp_sa,
    grammar::{StateFilter, XfrmCommand},
    request::request,
};
use zeroize::Zeroizing;

use crate::arguments::{CaptureOptions, PacketFilterOptions};

/// What was written.
#[derive(Debug, Default)]
struct Written {
    states: usize,
    /// What Wireshark does not do.
    remarks: Vec<String>,
}

/// Writes the file, and warns.
pub(super) fn write(path: &Path, options: &CaptureOptions) -> anyhow::Result<()> {
    let environment = || std::env::var_os("UXFRM_CONTROL").filter(|path| !path.is_empty());
    let control = options.control.clone().or_else(|| environment().map(Into::into));
    let mut gateway = Connection::new(connect(control.as_deref(), 0)?);
    let (text, written) = states(&mut gateway, &options.filter)?;
    if written.states == 0 {
        let remarks: String = written.remarks.iter().map(|remark| format!("; {remark}")).collect();
        let path = path.display();
        anyhow::bail!("there is no state to write keys of, so {path} is not made{remarks}");
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(
            || format!("can't make {}: it has to be a new file, for keys", path.display()),
        )?;
    file.write_all(&text)?;
    let Written { states, remarks } = written;
    let mut complaints = io::stderr().lock();
    for remark in remarks {
        writeln!(complaints, "{remark}")?;
    }
    writeln!(
        complaints,
        "warning: {} has the keys of {}. Whoever reads it can read all packets that these states \
         have carried and will carry until they are replaced, and can forge packets. \
         Delete it when you are done.",
        path.display(),
        things(states as u64, "state", "states")
    )?;
    Ok(())
}

/// The lines of all states that the filter names.
fn states(
    gateway: &mut Connection,
    filter: &PacketFilterOptions,
) -> anyhow::Result<(Zeroizing<Vec<u8>>, Written)> {
    let (request, wanted) = request(&XfrmCommand::StateList(StateFilter::default()))?;
    let mut written = Written::default();
    let mut text = Zeroizing::new(Vec::new());
    gateway.talk(request, wanted, |message| {
        if MessageType::from_number(message.header.kind) != Some(MessageType::NewSa) {
            return;
        }
        if let Ok(DumpedState::Whole(config)) = DumpedState::of(*message)
            && selects(filter, &config)
        {
            add(&config, &mut text, &mut written);
        }
    })?;
    Ok((text, written))
}

fn add(config: &SaConfig, text: &mut Zeroizing<Vec<u8>>, written: &mut Written) {
    let name = format!("state dst {} spi {}", config.id.destination, config.id.spi);
    match esp_sa::line(config) {
        Ok(line) => {
            push(text, line.as_bytes());
            written.states += 1;
            let remark = esp_sa::remark(config).map(|remark| format!("{name}: {remark}"));
            written.remarks.extend(remark);
        }
        Err(unknown) => written.remarks.push(format!("{name} is left out: {unknown}")),
    }
}

/// Appends bytes; a buffer that is outgrown is wiped.
fn push(text: &mut Zeroizing<Vec<u8>>, bytes: &[u8]) {
    if text.capacity() - text.len() < bytes.len() {
        let mut larger = Zeroizing::new(Vec::with_capacity(2 * (text.len() + bytes.len())));
        larger.extend_from_slice(text);
        *text = larger;
    }
    text.extend_from_slice(bytes);
}

/// Whether the filter names this state, or none.
fn selects(filter: &PacketFilterOptions, config: &SaConfig) -> bool {
    let ends = [config.source, config.id.destination];
    filter.spi.is_none_or(|spi| spi == config.id.spi.0)
        && filter.peer.is_none_or(|peer| ends.iter().any(|end| peer.contains(*end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_grows_and_keeps_its_bytes() {
        let mut text = Zeroizing::new(Vec::new());
        for round in 0..100 {
            push(&mut text, &[round; 7]);
        }
        assert_eq!(text.len(), 700);
        assert!(text.chunks(7).zip(0..).all(|(bytes, round)| bytes == [round; 7]));
    }
}
