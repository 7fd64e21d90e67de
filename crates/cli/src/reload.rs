//! `uxfrm reload`: has the running gateway read its files again, and prints the changes.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use uxfrm_control_client::reload::{ReloadAnswer, ReloadRequest};
use uxfrm_control_client::{ClientDialect, connect_dialect};

use crate::arguments::{ReleaseOptions, ReloadOptions};

/// Buffer for answers, larger than any that a gateway sends.
const LARGEST: usize = 256 * 1024;

pub(crate) fn execute(options: &ReloadOptions) -> anyhow::Result<()> {
    let request = if options.dry_run { ReloadRequest::Show } else { ReloadRequest::Apply };
    ask(request, options.control.as_deref())
}

/// `uxfrm release`: releases destinations that are held since the last run.
pub(crate) fn release(options: &ReleaseOptions) -> anyhow::Result<()> {
    ask(ReloadRequest::Release, options.control.as_deref())
}

fn ask(request: ReloadRequest, control: Option<&Path>) -> anyhow::Result<()> {
    let gateway = connect_dialect(control, ClientDialect::Reload)?;
    let bytes = serde_json::to_vec(&request)?;
    send(gateway.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).context("the gateway went away")?;
    let mut output = std::io::stdout().lock();
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = match recv(gateway.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(0) => bail!("the gateway went away"),
            Ok(length) => length,
            Err(Errno::EAGAIN) => bail!("the gateway does not answer: it is stopped or too busy"),
            Err(errno) => return Err(errno).context("the gateway went away"),
        };
        let answer = serde_json::from_slice(&buffer[..length])
            .context("what the gateway answered is not understood")?;
        match answer {
            ReloadAnswer::Lines(lines) => {
                lines.iter().try_for_each(|line| writeln!(output, "{line}"))?
            }
            ReloadAnswer::Done => return Ok(()),
            ReloadAnswer::Failed(why) => bail!(why),
        }
    }
}
