//! Prints answers as iproute2, byte for byte: blanks at line ends, `-s`, `-o`.
//!
//! The text is iproute2 7.1's; it differs from 6.1 only in what that lacks: `mode crypto|packet`
//! behind an offload, `dir`, `pcpu-num`. Three departures: mode `iptfs` has its name, `monitor
//! nokeys` hides keys of states too, and `nat-keepalive` and `mtimer-thresh` are shown.

mod algorithm;
mod attributes;
mod event;
mod info;
mod policy;
mod selector;
mod state;

pub(crate) use self::{
    algorithm::algorithm_name,
    attributes::security_context,
    info::{SAD_COUNT, SAD_HASH, SPD_COUNTS, SPD_HASH, THRESHOLDS},
    policy::SOCKET,
};

use std::fmt::{self, Write as _};

use zeroize::Zeroizing;

use crate::{
    answer::AnswerMessage,
    grammar::{Notation, Style},
    names::Names,
};

/// Answers longer than this are moved while they are written; what they leave behind is not wiped.
const CAPACITY: usize = 64 * 1024;

/// Whether keys are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// As they are.
    Shown,
    /// As `<<Keys hidden>>`.
    Hidden,
}

/// Text being written. It has keys in it, and is wiped.
pub struct WipedText<'n> {
    out: Zeroizing<String>,
    style: Style,
    names: &'n Names,
    keys: Keys,
}

impl<'n> WipedText<'n> {
    /// An empty one.
    #[must_use]
    pub fn new(style: Style, keys: Keys, names: &'n Names) -> Self {
        Self { out: Zeroizing::new(String::with_capacity(CAPACITY)), style, names, keys }
    }

    /// What is written so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.out
    }

    /// Begins again, and leaves nothing behind.
    pub fn clear(&mut self) {
        use zeroize::Zeroize as _;
        self.out.zeroize(); // which keeps the room
    }

    /// Writes text as it is.
    pub fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writes an answer.
    pub fn answer(&mut self, answer: &AnswerMessage<'_>) {
        match answer {
            AnswerMessage::State(state) => self.state(state),
            AnswerMessage::Policy(policy) => self.policy(policy),
            AnswerMessage::Acquire(acquire, found) => self.acquire(acquire, found),
            AnswerMessage::StatesFlushed(protocol) => self.states_flushed(*protocol),
            AnswerMessage::PoliciesFlushed(found) => self.policies_flushed(found),
            AnswerMessage::Report(report, found) => self.report(report, found),
            AnswerMessage::Aevent(aevent) => self.aevent(aevent),
            AnswerMessage::Mapping(mapping) => self.mapping(mapping),
            AnswerMessage::Defaults(defaults) => self.defaults(defaults),
            AnswerMessage::SadInfo(found) => self.sad_info(found),
            AnswerMessage::SpdInfo(found) => self.spd_info(found),
            AnswerMessage::Unknown(number) => {
                self.put(format_args!("Unknown message of type {number:#04x}\n"));
            }
            AnswerMessage::Broken(kind) => {
                self.put(format_args!("Message of type {kind:?} cut off\n"));
            }
        }
    }

    pub(crate) fn is_pretty(&self) -> bool {
        self.style.notation == Notation::PrettyJson
    }

    pub(crate) fn names(&self) -> &'n Names {
        self.names
    }

    pub(crate) fn keys(&self) -> Keys {
        self.keys
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing into a `String` does not fail.
        let _ = self.out.write_fmt(text);
    }

    /// `_SL_`
    fn end_line(&mut self) {
        let end = if self.is_oneline() { '\\' } else { '\n' };
        self.out.push(end);
    }

    /// Behind the last line of an answer.
    fn end_answer(&mut self) {
        if self.is_oneline() {
            self.out.push('\n');
        }
    }

    fn is_oneline(&self) -> bool {
        self.style.notation == Notation::Oneline
    }

    /// `-s`
    fn shows_statistics(&self) -> bool {
        self.style.statistics > 0
    }

    /// A value that is shorter than its structure.
    fn truncated(&mut self) {
        self.raw("(ERROR truncated)");
    }
}

impl fmt::Debug for WipedText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Page({} bytes)", self.out.len())
    }
}

/// `family` where a selector has one, else the other, else the preferred.
fn family_or(family: u16, other: u16, style: Style) -> u16 {
    match (family, other) {
        (0, 0) => style.family.map_or(0, uxfrm_netlink::client::family_number),
        (0, other) => other,
        (family, _) => family,
    }
}
