//! The terminal: taken for as long as `uxfrm top` runs, and given back however it ends.
//!
//! A panic gives it back by ratatui's hook, an error and a signal by [`Drop`]. SIGINT, SIGTERM,
//! SIGHUP and SIGQUIT are read, not delivered. Nothing helps against SIGKILL: `reset` does then.

use std::{
    env,
    io::{self, IsTerminal as _},
    time::Duration,
};

use nix::sys::{
    signal::{SigSet, Signal, raise},
    signalfd::{SfdFlags, SignalFd},
};
use ratatui::{
    DefaultTerminal, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        event::{self, Event, KeyEvent, KeyEventKind},
        execute,
        terminal::{Clear, ClearType},
    },
};

use super::draw::{Characters, Colours, Palette, Scene, draw};

/// The signals that end it.
const ENDS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    signals: SignalFd,
}

/// What the user or the system did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// A signal ends the program.
    Ended(Signal),
}

/// Blocks the signals that end it, for this thread and those that it starts: call it before any is.
///
/// # Errors
/// The kernel's.
pub(crate) fn block_signals() -> io::Result<SignalFd> {
    let ends: SigSet = ENDS.into_iter().collect();
    ends.thread_block()?;
    Ok(SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// What the terminal can show, by the environment.
pub(crate) fn palette() -> Palette {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let colours = if is_set("NO_COLOR") { Colours::None } else { Colours::Sixteen };
    // The first that is set decides, as in setlocale(3).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find(|name| is_set(name));
    let locale = locale.and_then(|name| env::var(name).ok()).unwrap_or_default().to_lowercase();
    let is_unicode = locale.contains("utf-8") || locale.contains("utf8");
    let characters = if is_unicode { Characters::Unicode } else { Characters::Ascii };
    Palette { colours, characters }
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn take(signals: SignalFd) -> anyhow::Result<Self> {
        let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() || is_dumb {
            anyhow::bail!(
                "this is no terminal that can show it: `uxfrm top --once` prints a frame"
            );
        }
        Ok(Self { terminal: ratatui::try_init()?, signals })
    }

    /// Draws.
    ///
    /// # Errors
    /// The terminal's.
    pub(crate) fn draw(&mut self, scene: Scene<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| draw(scene, frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Its height in lines.
    pub(crate) fn height(&self) -> u16 {
        self.terminal.size().map_or(0, |size| size.height)
    }

    /// Draws all of it the next time.
    ///
    /// # Errors
    /// The terminal's.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        // Not by ratatui's `clear`, which asks the terminal for its cursor and waits for an answer.
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    /// What happens within this time, if anything.
    ///
    /// # Errors
    /// The terminal's: it is gone.
    pub(crate) fn input(&self, within: Duration) -> io::Result<Option<Input>> {
        if let Some(signal) = self.signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            let signal = Signal::try_from(number).unwrap_or(Signal::SIGTERM);
            return Ok(Some(Input::Ended(signal)));
        }
        if !event::poll(within)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Some(Input::Key(key)),
            Event::Resize(..) => Some(Input::Resized),
            Event::Key(_)
            | Event::FocusGained
            | Event::FocusLost
            | Event::Mouse(_)
            | Event::Paste(_) => None,
        })
    }

    /// Gives the terminal to the shell until it lets this program go on.
    ///
    /// # Errors
    /// The terminal's.
    pub(crate) fn suspend(&mut self) -> anyhow::Result<()> {
        self.terminal.show_cursor()?;
        ratatui::try_restore()?;
        raise(Signal::SIGTSTP)?;
        self.terminal = ratatui::try_init()?;
        Ok(self.clear()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _gone = ratatui::try_restore();
    }
}
