//! What the demo tells as it goes: a story on standard output, or nothing where only JSON is wanted.

use std::io::{self, IsTerminal, Write};

use uxfrm_bench::pair::{A, B, WIRE_MTU};

use super::wire::Wire;

/// Where the story goes.
#[derive(Debug)]
pub(crate) enum Screen {
    /// Nowhere.
    Silent,
    /// To standard output.
    Story {
        /// A terminal also sees a line that changes in place.
        is_terminal: bool,
    },
}

impl Screen {
    /// The story, on standard output.
    pub(crate) fn story() -> Self {
        Self::Story { is_terminal: io::stdout().is_terminal() }
    }

    /// The two sites and what is between them.
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

    /// A line.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        match self {
            Self::Silent => Ok(()),
            Self::Story { .. } => writeln!(io::stdout(), "{text}"),
        }
    }

    /// The rate of the moment, in place of the one before.
    pub(crate) fn rate(&self, gbps: f64) -> io::Result<()> {
        match self {
            Self::Silent | Self::Story { is_terminal: false } => Ok(()),
            Self::Story { is_terminal: true } => {
                let mut stdout = io::stdout();
                write!(stdout, "\r  TCP   {gbps:7.2} Gbit/s ")?;
                stdout.flush()
            }
        }
    }

    /// The line that stays when a rate is final.
    pub(crate) fn final_rate(&self, gbps: f64) -> io::Result<()> {
        match self {
            Self::Silent => Ok(()),
            Self::Story { is_terminal } => {
                let back = if *is_terminal { "\r" } else { "" };
                writeln!(io::stdout(), "{back}  TCP   {gbps:7.2} Gbit/s ")
            }
        }
    }

    /// One captured packet of each kind.
    pub(crate) fn wire(&self, wire: &Wire) -> io::Result<()> {
        for sighting in &wire.sightings {
            let readable = match sighting.plaintext_packets {
                0 => "no plaintext in any".to_owned(),
                count => format!("plaintext readable in {count}"),
            };
            self.line(&format!(
                "  wire  {} × {}, {readable}; one of them: {}",
                sighting.packets,
                sighting.kind.word(),
                sighting.summary
            ))?;
            for line in sighting.dump() {
                self.line(&format!("          {line}"))?;
            }
        }
        Ok(())
    }
}
