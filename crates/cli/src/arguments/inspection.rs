//! Options of the commands that ask a running gateway.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use uxfrm_engine::DropReason;
use uxfrm_status::gateway::PeerFilter;

use crate::top::view::View;

/// Where the gateway is.
#[derive(Args, Debug)]
pub(crate) struct NamespaceOptions {
    /// Ask the gateway of this network namespace, by its name for `ip netns`; needs CAP_SYS_ADMIN.
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) netns: Option<String>,
}

/// Options of `uxfrm stat`.
#[derive(Args, Debug)]
pub(crate) struct StatOptions {
    /// Print a line for each drop reason of uxfrm instead: they split the kernel's counters, and
    /// count what it does not.
    #[arg(long)]
    pub(crate) reasons: bool,

    /// Print a table of the workers' flow caches instead: entries, room, bytes of memory, hits and
    /// misses.
    #[arg(long, conflicts_with = "reasons")]
    pub(crate) caches: bool,

    /// Print one line of JSON.
    #[arg(short, long)]
    pub(crate) json: bool,

    /// Go on, and every so many seconds print the counters that grew: growth a second, new count.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) watch: Option<u64>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// Options of `uxfrm top`.
#[derive(Args, Debug)]
pub(crate) struct TopOptions {
    /// Only rows with these words in any case; of tunnels, those with this address or prefix.
    pub(crate) filter: Option<String>,

    /// What to show at first, by name or by its digit, 1 to 6.
    #[arg(short, long, default_value = "tunnels")]
    pub(crate) view: View,

    /// Sort by the column with this title, as "IN b/s".
    #[arg(short, long, value_name = "COLUMN")]
    pub(crate) sort: Option<String>,

    /// Ask the gateway every so many seconds, from 0.2 to 30.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    pub(crate) delay: f64,

    /// Print one frame as text, of what happens within the delay, instead of a live screen.
    #[arg(short = 'b', long)]
    pub(crate) once: bool,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// Seconds between two questions of `uxfrm top`.
fn delay(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let is_fit = (0.2..=30.0).contains(&seconds);
    if is_fit { Ok(seconds) } else { Err("it is from 0.2 to 30 seconds".to_owned()) }
}

/// Options of `uxfrm drops`.
#[derive(Args, Debug)]
pub(crate) struct DropsOptions {
    /// Go on, and print each packet as it is dropped, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Print a JSON object a line.
    #[arg(short, long)]
    pub(crate) json: bool,

    /// Only those of this reason, as `in_no_state`: a line of `uxfrm stat --reasons`.
    #[arg(long, value_parser = reason)]
    pub(crate) reason: Option<String>,

    /// Only those from or to this address or prefix, outside or inside of ESP.
    #[arg(long)]
    pub(crate) peer: Option<PeerFilter>,

    /// Print how many packets of each state, policy or device were dropped instead.
    #[arg(long, conflicts_with_all = ["follow", "reason", "peer"])]
    pub(crate) by: Option<DropOwner>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// The name of a drop reason; of any other word, the most alike.
fn reason(word: &str) -> Result<String, String> {
    let names = || DropReason::ALL.iter().map(|reason| reason.as_str());
    if DropReason::named(word).is_some() {
        return Ok(word.to_owned());
    }
    let mut nearest: Vec<_> = names().map(|name| (distance(word, name), name)).collect();
    nearest.sort_unstable();
    // What shares hardly a letter is no misspelling.
    let alike = nearest.iter().filter(|(distance, _)| 2 * distance <= word.len());
    let alike: Vec<_> = alike.take(NEAREST).map(|(_, name)| *name).collect();
    let alike = match &alike[..] {
        [] => String::new(),
        alike => format!(". Most alike: {}", alike.join(", ")),
    };
    Err(format!("no packet is dropped for it{alike}. `uxfrm stat --reasons` lists all"))
}

/// Reasons that are told instead of one that is not known.
const NEAREST: usize = 3;

/// How many characters are to be changed, added or taken away (Levenshtein); a part of a name is
/// nearer than another name.
fn distance(word: &str, name: &str) -> usize {
    if name.contains(word) {
        return 0;
    }
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (above, letter) in word.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, other) in name.bytes().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[name.len()]
}

/// What drops are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DropOwner {
    /// State
    Sa,
    /// Policy
    Policy,
    /// Offload device
    Device,
}

/// Options of `uxfrm status`.
#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    /// Only tunnels with this peer: an address or prefix of the other gateway's, or an address in
    /// its nets.
    pub(crate) peer: Option<PeerFilter>,

    /// Print one line of JSON.
    #[arg(short, long)]
    pub(crate) json: bool,

    /// Print all tunnels instead of the 50 in the worst state.
    #[arg(long)]
    pub(crate) all: bool,

    /// Print it anew every so many seconds.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) watch: Option<u64>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// Options of `uxfrm why`.
#[derive(Args, Debug)]
pub(crate) struct WhyOptions {
    /// Print one line of JSON.
    #[arg(short, long)]
    pub(crate) json: bool,

    /// A packet that was dropped, by the number that `uxfrm drops` shows.
    #[arg(long, value_name = "N", conflicts_with = "words")]
    pub(crate) drop: Option<u64>,

    /// SRC DST [PROTO [[SPORT] DPORT]] [dir in|out] [spi SPI] [from ADDR] [to ADDR] [mark MARK]:
    /// the packet, and the ESP packet that it comes in with its outer addresses.
    #[arg(value_name = "WORD", required_unless_present = "drop")]
    pub(crate) words: Vec<String>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

/// Options of `uxfrm probe`.
#[derive(Args, Debug)]
pub(crate) struct ProbeOptions {
    /// A host behind the tunnel that answers ping; not the other gateway.
    pub(crate) address: IpAddr,

    /// An own address that the tunnel protects, to ping from; without, the first one whose pings
    /// leave in ESP.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) source: Option<IpAddr>,

    /// Milliseconds to wait for each answer; a size is tried three times.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60000))]
    pub(crate) patience: u64,

    /// Print one line of JSON.
    #[arg(short, long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) namespace: NamespaceOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_that_is_unknown_names_the_most_alike() {
        assert_eq!(reason("in_no_state").as_deref(), Ok("in_no_state"));
        for (word, like) in
            [("in_no_sate", "in_no_state"), ("forged", "in_forged"), ("InReplay", "in_replay")]
        {
            let says = reason(word).unwrap_err();
            assert!(says.contains(like), "{word}: {says}");
        }
        assert!(!reason("bad_weather").unwrap_err().contains("alike"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
