//! Whole states and policies as lines: what [`super::lines`] reads, written from the same tables.
//!
//! A line says all that makes a state or policy what it is, so that whoever reads it makes the same
//! again; numbers, counts and ages are not of that. It begins with `xfrm`: `ip -batch` takes it,
//! too, but for words that are uxfrm's own. Keys are in it: it is wiped.

mod policy;
mod state;

use std::fmt::{self, Write as _};

use uxfrm_engine::{
    Action, DefaultActions, LifetimeLimits, Mark, Policy, PortMask, SaConfig, Selector,
};
use zeroize::{Zeroize as _, Zeroizing};

use super::{
    keyword::{DEFAULT_ACTIONS, LIMITS, LimitWord, Table},
    limit,
    protocol::{self, DCCP, GRE, ICMP, ICMPV6, MOBILITY_HEADER, SCTP, TCP, UDP},
};
use crate::{names::Names, text::Keys};

/// No line is longer: two keys of 512 bytes, and six templates. Within this the text does not move.
const LONGEST: usize = 16 * 1024;

/// What no line can say: the kernel's interface has it, and `ip xfrm` no word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no line of ip xfrm can say {0}")]
pub struct UnwritableError(&'static str);

/// Writes lines, one after the other.
pub struct LineWriter<'n> {
    text: Zeroizing<String>,
    names: &'n Names,
    keys: Keys,
}

impl<'n> LineWriter<'n> {
    /// With interfaces by `names`. Without its keys no line can be read again.
    #[must_use]
    pub fn new(names: &'n Names, keys: Keys) -> Self {
        Self { text: Zeroizing::new(String::with_capacity(LONGEST)), names, keys }
    }

    /// `xfrm state add …`, to its line feed. It is there until the next one is written.
    ///
    /// # Errors
    /// [`UnwritableError`]
    pub fn state(&mut self, config: &SaConfig) -> Result<&str, UnwritableError> {
        self.text.zeroize();
        self.put_state(config)?;
        Ok(self.end())
    }

    /// `xfrm policy add …`; with its index, unless that is 0.
    ///
    /// # Errors
    /// [`UnwritableError`]
    pub fn policy(&mut self, policy: &Policy) -> Result<&str, UnwritableError> {
        self.text.zeroize();
        self.put_policy(policy)?;
        Ok(self.end())
    }

    /// `xfrm policy setdefault …`, for all three directions.
    pub fn defaults(&mut self, defaults: DefaultActions) -> &str {
        let DefaultActions { inbound, forward, outbound } = defaults;
        self.text.zeroize();
        self.raw("xfrm policy setdefault");
        for (direction, action) in [("in", inbound), ("fwd", forward), ("out", outbound)] {
            self.put(format_args!(" {direction} {}", default_action(action)));
        }
        self.end()
    }

    fn end(&mut self) -> &str {
        self.text.push('\n');
        &self.text
    }

    fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing into a `String` does not fail.
        let _ = self.text.write_fmt(text);
    }

    /// A keyword and its number, unless that is 0, which is what no word means.
    fn number(&mut self, word: &str, number: u32) {
        if number != 0 {
            self.put(format_args!(" {word} {number}"));
        }
    }

    /// A keyword and one of the words that it takes.
    fn choice<T: PartialEq>(
        &mut self,
        word: &str,
        table: &Table<T>,
        meaning: &T,
        otherwise: &'static str,
    ) -> Result<(), UnwritableError> {
        let choice = table.word_of(meaning).ok_or(UnwritableError(otherwise))?;
        self.put(format_args!(" {word} {choice}"));
        Ok(())
    }

    /// Flags by their names, or all as one number where one has none.
    fn flags<F>(&mut self, word: &str, table: &Table<F>, flags: F)
    where
        F: bitflags::Flags + Copy + 'static,
        F::Bits: fmt::LowerHex,
    {
        if flags.is_empty() {
            return;
        }
        let named = table.meanings().filter(|(_, flag)| flags.contains(**flag));
        let (names, known) = named
            .fold((String::new(), F::empty()), |(names, known), (name, flag)| {
                (names + " " + name, known.union(*flag))
            });
        if flags.difference(known).is_empty() {
            self.put(format_args!(" {word}{names}"));
        } else {
            self.put(format_args!(" {word} {:#x}", flags.bits()));
        }
    }

    fn mark(&mut self, Mark { value, mask }: Mark) -> Result<(), UnwritableError> {
        match (value, mask) {
            (0, 0) => {}
            (_, 0) => return Err(UnwritableError("a mark of which no bit counts")),
            (_, u32::MAX) => self.put(format_args!(" mark {value:#x}")),
            (..) => self.put(format_args!(" mark {value:#x} mask {mask:#x}")),
        }
        Ok(())
    }

    fn limits(&mut self, limits: &LifetimeLimits) {
        for (word, meaning) in LIMITS.meanings() {
            let [now, none] = [limits, &limit::NONE].map(|limits| limit_of(limits, *meaning));
            if now != none {
                self.put(format_args!(" limit {word} {now}"));
            }
        }
    }

    /// `SELECTOR`, both ends of it always, so that it has a family.
    fn selector(&mut self, selector: &Selector) -> Result<(), UnwritableError> {
        let Selector { source, destination, protocol, ifindex, user, .. } = *selector;
        if user != 0 {
            return Err(UnwritableError("a selector for one user"));
        }
        self.put(format_args!(" src {source} dst {destination}"));
        if ifindex != 0 {
            self.device(ifindex);
        }
        if protocol != 0 {
            self.put(format_args!(" proto {}", protocol::upper_name(protocol)));
        }
        self.ports(selector);
        Ok(())
    }

    /// In iproute2's words for the protocol if it has some, else with the masks.
    fn ports(&mut self, selector: &Selector) {
        let Selector { protocol, source_port, destination_port, .. } = *selector;
        let is_whole = |port: PortMask| port.mask == u16::MAX;
        if protocol == GRE && is_whole(source_port) && is_whole(destination_port) {
            let (upper, lower) = (u32::from(source_port.value), destination_port.value);
            return self.put(format_args!(" key {:#x}", upper << 16 | u32::from(lower)));
        }
        let words = [("sport", "type", source_port), ("dport", "code", destination_port)];
        for (port_word, icmp_word, port) in words {
            let PortMask { value, mask } = port;
            match protocol {
                _ if port == PortMask::default() => {}
                0 | TCP | UDP | SCTP | DCCP if is_whole(port) && value != 0 => {
                    self.put(format_args!(" {port_word} {value}"));
                }
                ICMP | ICMPV6 | MOBILITY_HEADER if is_whole(port) && value <= 0xff => {
                    self.put(format_args!(" {icmp_word} {value}"));
                }
                _other => self.put(format_args!(" {port_word} {value:#x}/{mask:#x}")),
            }
        }
    }

    /// By the name that this host has for it, if that needs no quotes.
    fn device(&mut self, index: u32) {
        let name = self.names.device(index);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@+".contains(&byte);
        if name.bytes().all(is_plain) && name != "none" {
            self.put(format_args!(" dev {name}"));
        } else {
            self.put(format_args!(" dev if{index}"));
        }
    }

    /// As a message names it: by its number, `if7`.
    fn numbered_device(&mut self, name: &str) {
        match name.strip_prefix("if").and_then(|number| number.parse().ok()) {
            Some(index) => self.device(index),
            None => self.put(format_args!(" dev {name}")),
        }
    }
}

impl fmt::Debug for LineWriter<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LineWriter({} bytes)", self.text.len())
    }
}

fn default_action(action: Action) -> &'static str {
    DEFAULT_ACTIONS.word_of(&action).unwrap_or("accept") // the table has both
}

const fn limit_of(limits: &LifetimeLimits, limit: LimitWord) -> u64 {
    match limit {
        LimitWord::TimeSoft => limits.added_seconds.soft,
        LimitWord::TimeHard => limits.added_seconds.hard,
        LimitWord::TimeUseSoft => limits.used_seconds.soft,
        LimitWord::TimeUseHard => limits.used_seconds.hard,
        LimitWord::ByteSoft => limits.bytes.soft,
        LimitWord::ByteHard => limits.bytes.hard,
        LimitWord::PacketSoft => limits.packets.soft,
        LimitWord::PacketHard => limits.packets.hard,
    }
}
