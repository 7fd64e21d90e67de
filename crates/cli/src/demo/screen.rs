//! The demo's progress on standard output, or nothing if only JSON is wanted.

use std::io::{self, IsTerminal, Write};

use uxfrm_bench::pair::{A, B, WIRE_MTU};

use super::wire::WireCapture;

/// Where progress is printed.
#[derive(Debug)]
pub(crate) enum Screen {
    /// Nowhere.
    Silent,
    /// To standard output.
    Text {
        /// On a terminal, a line with the current rate is updated in place.
        is_terminal: bool,
    },
}

impl Screen {
    /// Prints to standard output.
    pub(crate) fn text() -> Self {
        Self::Text { is_terminal: io::stdout().is_terminal() }
    }

    /// Draws the two sites and the wire.
    pub(crate) fn topology(&self) -> io::Result<()> {
        self.line("two network namespaces on this machine; nothing outside them is touched")?;
        self.line("")?;
        self.line("  ┌─ a ───────────────────┐         ┌─ b ───────────────────┐")?;
        self.line("  │ ping, TCP ─ uxfrm run ├── veth ─┤ uxfrm run ─ TCP, ping │")?;
        self.line("  └───────────────────────┘         └───────────────────────┘")?;
        self.line(&format!(
            "    {:<11} {:<11}   MTU {WIRE_MTU}  {:>12} {:>11}",
            A.lan, A.wire, B.wire, B.lan
        ))
    }

    /// Prints a line.
    pub(crate) fn line(&self, line: &str) -> io::Result<()> {
        match self {
            Self::Silent => Ok(()),
            Self::Text { .. } => writeln!(io::stdout(), "{line}"),
        }
    }

    /// Updates the current rate in place.
    pub(crate) fn rate(&self, gbps: f64) -> io::Result<()> {
        match self {
            Self::Silent | Self::Text { is_terminal: false } => Ok(()),
            Self::Text { is_terminal: true } => {
                let mut stdout = io::stdout();
                write!(stdout, "\r  TCP   {gbps:7.2} Gbit/s ")?;
                stdout.flush()
            }
        }
    }

    /// Prints the final rate.
    pub(crate) fn final_rate(&self, gbps: f64) -> io::Result<()> {
        match self {
            Self::Silent => Ok(()),
            Self::Text { is_terminal } => {
                let back = if *is_terminal { "\r" } else { "" };
                writeln!(io::stdout(), "{back}  TCP   {gbps:7.2} Gbit/s ")
            }
        }
    }

    /// Prints one captured packet of each kind.
    pub(crate) fn wire(&self, wire: &WireCapture) -> io::Result<()> {
        for captured in &wire.kinds {
            let readable = match captured.plaintext_packets {
                0 => "no plaintext in any".to_owned(),
                count => format!("plaintext readable in {count}"),
            };
            self.line(&format!(
                "  wire  {} × {}, {readable}; one of them: {}",
                captured.packets,
                captured.kind.word(),
                captured.summary
            ))?;
            for line in captured.dump() {
                self.line(&format!("          {line}"))?;
            }
        }
        Ok(())
    }
}
