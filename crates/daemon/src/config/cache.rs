//! `[cache]`: size and mode of each worker's flow caches.

use std::num::{NonZeroU32, NonZeroU64};

use serde::Deserialize;
use uxfrm_engine::{CacheFamilySettings, CacheMode, CacheSettings, WorkerCacheSettings};

/// Flows of the smallest table.
const SET: usize = CacheSettings::MIN_FLOWS;

/// `[cache]`, for each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// For packets that leave.
    pub outbound: Families,
    /// For packets that came in: policies `in` and `fwd`.
    pub inbound: Families,
}

/// `[cache.outbound]`, `[cache.inbound]`, for each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Families {
    /// Packets between IPv4 addresses.
    pub ipv4: Flows,
    /// Packets between IPv6 addresses.
    pub ipv6: Flows,
}

/// One cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Words")]
pub struct Flows {
    mode: Mode,
    room: Room,
}

/// When it is used; default `auto`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// While it pays.
    #[default]
    Auto,
    /// Always, but for traffic of which hardly any packet has a flow in it.
    On,
    /// Never.
    Off,
}

/// The most that its table of flows may take; it begins small. What is kept of policies comes
/// beside it: 24 bytes for each that packets met, in pieces of 32 neighbours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Room {
    #[default]
    Usual,
    /// Flows, rounded down to whole sets of sixteen, of which there is one at least.
    Entries(NonZeroU32),
    /// Bytes of that table, never more.
    Memory(NonZeroU64),
}

/// As they stand in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    #[serde(default)]
    mode: Mode,
    entries: Option<NonZeroU32>,
    memory: Option<NonZeroU64>,
}

impl TryFrom<Words> for Flows {
    type Error = &'static str;

    fn try_from(words: Words) -> Result<Self, Self::Error> {
        let Words { mode, entries, memory } = words;
        let room = match (entries, memory) {
            (None, None) => Room::Usual,
            (Some(entries), None) => Room::Entries(entries),
            (None, Some(memory)) => Room::Memory(memory),
            (Some(_), Some(_)) => return Err("a cache has `entries` or `memory`, not both"),
        };
        Ok(Self { mode, room })
    }
}

impl Cache {
    /// What each says that does nothing, or can't be: the section, the key, and what would be
    /// right.
    pub(super) fn in_vain(&self) -> impl Iterator<Item = (&'static str, &'static str, String)> {
        let [v4, v6] = CacheSettings::BYTES_PER_FLOW;
        let all = [
            ("cache.outbound.ipv4", self.outbound.ipv4, v4),
            ("cache.outbound.ipv6", self.outbound.ipv6, v6),
            ("cache.inbound.ipv4", self.inbound.ipv4, v4),
            ("cache.inbound.ipv6", self.inbound.ipv6, v6),
        ];
        all.into_iter().filter_map(|(section, flows, bytes)| {
            let (key, message) = flows.in_vain(bytes)?;
            Some((section, key, message))
        })
    }
}

impl Flows {
    /// `bytes` are those of one flow.
    fn in_vain(self, bytes: usize) -> Option<(&'static str, String)> {
        let (key, said, unit, least) = match self.room {
            Room::Usual => return None,
            Room::Entries(entries) => ("entries", u64::from(entries.get()), "flows", SET),
            Room::Memory(memory) => ("memory", memory.get(), "bytes", SET * bytes),
        };
        let message = if self.mode == Mode::Off {
            format!("{key} does nothing beside mode = \"off\": leave one of them out")
        } else if said < least as u64 {
            format!("{said} {unit} are less than the smallest table has; {least} or more will do")
        } else {
            return None;
        };
        Some((key, message))
    }

    /// `bytes` are those of one flow.
    fn settings(self, bytes: usize) -> CacheSettings {
        let mode = match self.mode {
            Mode::Auto => CacheMode::Auto,
            Mode::On => CacheMode::On,
            Mode::Off => CacheMode::Off,
        };
        let flows = match self.room {
            Room::Usual => CacheSettings::default().flows,
            Room::Entries(entries) => usize::try_from(entries.get()).unwrap_or(usize::MAX),
            Room::Memory(memory) => usize::try_from(memory.get()).unwrap_or(usize::MAX) / bytes,
        };
        CacheSettings { mode, flows }
    }
}

impl From<Families> for CacheFamilySettings {
    fn from(Families { ipv4, ipv6 }: Families) -> Self {
        let [v4, v6] = CacheSettings::BYTES_PER_FLOW;
        Self { v4: ipv4.settings(v4), v6: ipv6.settings(v6) }
    }
}

impl From<Cache> for WorkerCacheSettings {
    fn from(Cache { outbound, inbound }: Cache) -> Self {
        Self { outbound: outbound.into(), inbound: inbound.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn caches(text: &str) -> WorkerCacheSettings {
        Config::parse("c.toml", text).unwrap().cache.into()
    }

    #[test]
    fn cache_settings_apply_per_direction_and_family() {
        assert_eq!(caches(""), WorkerCacheSettings::default());
        let text = "[cache.outbound]\nipv4 = { mode = 'on', entries = 5000 }\n\
                    [cache.inbound]\nipv6 = { mode = 'off' }\nipv4 = { memory = 1048576 }";
        let WorkerCacheSettings { outbound, inbound } = caches(text);
        assert_eq!(outbound.v4, CacheSettings { mode: CacheMode::On, flows: 5000 });
        assert_eq!(outbound.v6, CacheSettings::default());
        assert_eq!(inbound.v6.mode, CacheMode::Off);
        assert_eq!(inbound.v4.flows, 1_048_576 / CacheSettings::BYTES_PER_FLOW[0]);
    }

    #[test]
    fn the_smallest_tables_are_taken() {
        let text = "[cache.outbound]\nipv4 = { memory = 544 }\nipv6 = { memory = 1056 }\n\
                    [cache.inbound]\nipv4 = { entries = 16 }";
        let WorkerCacheSettings { outbound, inbound } = caches(text);
        for settings in [outbound.v4, outbound.v6, inbound.v4] {
            assert_eq!(settings.flows, CacheSettings::MIN_FLOWS);
        }
    }

    #[test]
    fn what_cannot_be_is_said_with_its_place() {
        for (text, message) in [
            (
                "[cache.outbound]\nipv4 = { entries = 1, memory = 1 }",
                "`entries` or `memory`, not both",
            ),
            ("[cache.outbound]\nipv4 = { entries = 0 }", "c.toml:2:"),
            (
                "[cache.outbound]\nipv4 = { entries = 15 }",
                "c.toml:2:10: 15 flows are less than the smallest table has; 16 or more will do",
            ),
            (
                "[cache.inbound]\nipv4 = { memory = 543 }",
                "c.toml:2:10: 543 bytes are less than the smallest table has; 544 or more will do",
            ),
            (
                "[cache.inbound.ipv6]\nmode = 'on'\nmemory = 10",
                "c.toml:3:1: 10 bytes are less than the smallest table has; 1056 or more will do",
            ),
            (
                "[cache.outbound]\nipv6 = { mode = 'off', entries = 1600 }",
                "c.toml:2:24: entries does nothing beside mode = \"off\": leave one of them out",
            ),
            (
                "[cache.inbound]\nipv4 = { memory = 4096, mode = 'off' }",
                "c.toml:2:10: memory does nothing beside mode = \"off\"",
            ),
            ("[cache.outbound]\nipv4 = { mode = 'maybe' }", "expected one of `auto`, `on`, `off`"),
            ("[cache]\nboth = 1", "expected `outbound` or `inbound`"),
        ] {
            let shown = Config::parse("c.toml", text).unwrap_err().to_string();
            assert!(shown.contains(message), "{shown}\n{message}");
        }
    }
}
