//! `uxfrm upgrade`: has another process replace the gateway.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use uxfrm_control_client::upgrade::{UpgradeAnswer, UpgradeRequest};
use uxfrm_control_client::{
    ClientDialect, connect_dialect, disable_timeout, receive_datagram, send_datagram,
};

use crate::arguments::UpgradeOptions;

/// Buffer for the answer, larger than any that a gateway sends.
const LARGEST: usize = 64 * 1024;

pub(crate) fn execute(options: &UpgradeOptions) -> anyhow::Result<()> {
    let binary = options.binary.as_deref().map(whole).transpose()?;
    let gateway = connect_dialect(options.control.as_deref(), ClientDialect::Upgrade)?;
    // The gateway itself has a timeout for the new process.
    disable_timeout(&gateway)?;
    let request = serde_json::to_vec(&UpgradeRequest { binary })?;
    send_datagram(&gateway, &request).context("the gateway went away")?;
    let mut buffer = vec![0; LARGEST];
    let length = match receive_datagram(&gateway, &mut buffer) {
        Ok(0) | Err(Errno::ECONNRESET) => bail!("the gateway went away: its log says why"),
        length => length?,
    };
    let answer = serde_json::from_slice(&buffer[..length])
        .context("what the gateway answered is not understood")?;
    match answer {
        UpgradeAnswer::Done { release, process, gap_microseconds } => {
            let milliseconds = gap_microseconds / 1000;
            let tenths = gap_microseconds % 1000 / 100;
            writeln!(
                std::io::stdout(),
                "uxfrm {release} has taken over as process {process}; packets waited for {milliseconds}.{tenths} ms"
            )?;
            Ok(())
        }
        UpgradeAnswer::Failed(why) => bail!(why),
    }
}

/// The absolute path: the gateway has another working directory.
fn whole(binary: &Path) -> anyhow::Result<PathBuf> {
    binary.canonicalize().with_context(|| format!("{} is not there", binary.display()))
}
