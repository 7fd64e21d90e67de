//! `uxfrm reload`: has the running gateway read its files again, and prints the changes;
//! `uxfrm xfrm sync` has it do what a text says.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use uxfrm_control_client::reload::{ReloadAnswer, ReloadRequest, SyncCourse, SyncRequest};
use uxfrm_control_client::{ClientDialect, connect_dialect, receive_datagram, send_datagram};
use uxfrm_xfrm::session::SyncText;
use zeroize::Zeroizing;

use crate::arguments::{ReleaseOptions, ReloadOptions};

/// Buffer for answers, larger than any that a gateway sends.
const LARGEST: usize = 256 * 1024;

pub(crate) fn execute(options: &ReloadOptions) -> anyhow::Result<()> {
    let request = if options.dry_run { ReloadRequest::Show } else { ReloadRequest::Apply };
    ask(request, options.control.as_deref(), NO_DIFFERENCE)
}

/// `uxfrm release`: releases destinations that are held since the last run.
pub(crate) fn release(options: &ReleaseOptions) -> anyhow::Result<()> {
    ask(ReloadRequest::Release, options.control.as_deref(), "there is nothing to let go of")
}

/// Prints the changes, or on stderr `none` where there are none.
fn ask(request: ReloadRequest, control: Option<&Path>, none: &str) -> anyhow::Result<()> {
    let gateway = connect_dialect(control, ClientDialect::Reload)?;
    put(&gateway, &serde_json::to_vec(&request)?)?;
    if follow(&gateway, &mut std::io::stdout().lock(), &[])? == 0 {
        say(none);
    }
    Ok(())
}

/// Tells that there is nothing to print, on stderr.
fn say(words: &str) {
    // An error on stderr itself cannot be reported.
    let _closed = writeln!(std::io::stderr(), "{words}");
}

/// Sends a datagram.
fn put(gateway: &OwnedFd, datagram: &[u8]) -> anyhow::Result<()> {
    match send_datagram(gateway, datagram) {
        Ok(()) => Ok(()),
        Err(Errno::EAGAIN) => bail!(SILENT),
        Err(errno) => Err(errno).context("the gateway went away"),
    }
}

const NO_DIFFERENCE: &str = "nothing is different";
const SILENT: &str = "the gateway does not answer: it is stopped or too busy";

/// Sends a text that the gateway is to do, and prints what it changed.
pub(crate) fn sync(
    gateway: &OwnedFd,
    request: SyncRequest,
    text: &SyncText,
    output: &mut dyn Write,
) -> anyhow::Result<()> {
    let is_dry_run = request.course == SyncCourse::Show;
    put(gateway, &serde_json::to_vec(&ReloadRequest::Sync(request))?)?;
    if follow(gateway, output, &text.pieces)? == 0 && is_dry_run {
        say(NO_DIFFERENCE);
    }
    Ok(())
}

/// Prints answers up to the last, and returns how many lines there were; sends `pieces` once they
/// are asked for.
fn follow(
    gateway: &OwnedFd,
    output: &mut dyn Write,
    pieces: &[Zeroizing<Vec<u8>>],
) -> anyhow::Result<usize> {
    let mut buffer = vec![0; LARGEST];
    let mut printed = 0;
    loop {
        let length = match receive_datagram(gateway, &mut buffer) {
            Ok(0) => bail!("the gateway went away"),
            Ok(length) => length,
            Err(Errno::EAGAIN) => bail!(SILENT),
            Err(errno) => return Err(errno).context("the gateway went away"),
        };
        let answer = serde_json::from_slice(&buffer[..length])
            .context("what the gateway answered is not understood")?;
        match answer {
            ReloadAnswer::Ready => pieces.iter().try_for_each(|piece| put(gateway, piece))?,
            ReloadAnswer::Lines(lines) => {
                printed += lines.len();
                lines.iter().try_for_each(|line| writeln!(output, "{line}"))?
            }
            ReloadAnswer::Done => return Ok(printed),
            ReloadAnswer::Failed(why) => bail!(why),
        }
    }
}
