//! The file that says what the policies of a run protected: `policies` in the state directory. No
//! keys are in it, and no templates: whoever puts it up again refuses what these would have
//! protected.
//!
//! ```text
//! uxfrm policies 1
//! default out programs
//! out main refuse programs live 2000 10.1.0.0/24 10.2.0.0/24 0 0/0 0/0 0 0 0/0 0
//! end 1 4d5e6f70
//! ```
//!
//! Words are direction, type, what becomes of plain packets, who put it in, whether it was held
//! itself, priority, source, destination, protocol, ports with masks, device, user, mark with mask,
//! interface id. The last line counts policies and has a checksum of all before it. A file that
//! ends otherwise is none.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    str::{FromStr, SplitAsciiWhitespace},
};

use nix::{libc, unistd::Uid};
use uxfrm_engine::{
    Action, DefaultActions, Direction, IfId, Mark, PolicyEntry, PolicyKind, PortMask, Prefix,
    Priority, Selector, Spd,
};

use crate::batch::provenance::FileOwned;

const NAME: &str = "policies";
const NEW: &str = "policies.new";
const FIRST_LINE: &str = "uxfrm policies 1";

/// Bytes of the largest file that is read: some million policies.
const LARGEST: u64 = 1 << 30;

/// The policies that a run protected.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedPolicies {
    /// Directions in which all was refused that no policy is for, and by whose word.
    pub(super) defaults: Vec<(Direction, PolicyOrigin)>,
    /// In the order in which they decide.
    pub(super) policies: Vec<SavedPolicy>,
}

/// One policy, reduced to its effect on plain packets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SavedPolicy {
    pub(super) direction: Direction,
    pub(super) kind: PolicyKind,
    pub(super) action: Cleartext,
    pub(super) origin: PolicyOrigin,
    /// Whether it stood for one of the run before.
    pub(super) is_held: bool,
    pub(super) priority: Priority,
    pub(super) selector: Selector,
    pub(super) mark: Mark,
    pub(super) if_id: IfId,
}

/// What becomes of plain packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleartext {
    Pass,
    Refuse,
}

/// Whether a file or a program added a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyOrigin {
    /// Batch files.
    PolicyFiles,
    /// Others, as an IKE daemon.
    Programs,
}

impl SavedPolicy {
    /// It refuses all addresses of a family, last.
    fn of_all(direction: Direction, all: Prefix) -> Self {
        Self {
            direction,
            kind: PolicyKind::Main,
            action: Cleartext::Refuse,
            origin: PolicyOrigin::Programs,
            is_held: true,
            priority: Priority(u32::MAX),
            selector: Selector {
                source: all,
                destination: all,
                protocol: 0,
                source_port: PortMask::default(),
                destination_port: PortMask::default(),
                ifindex: 0,
                user: 0,
            },
            mark: Mark { value: 0, mask: 0 },
            if_id: IfId(0),
        }
    }
}

impl Cleartext {
    pub(super) fn of(entry: &PolicyEntry) -> Self {
        if super::passes(entry) { Self::Pass } else { Self::Refuse }
    }
}

/// The policies of a database as they are written down, one after the other: a million of them are
/// never there at once.
pub(super) fn portray(spd: &Spd, written: &FileOwned) -> impl Iterator<Item = SavedPolicy> {
    let mut entries: Vec<_> = spd.iter().collect();
    entries.sort_unstable_by_key(|entry| (entry.kind() == PolicyKind::Main, entry.precedence()));
    entries.into_iter().map(|entry| SavedPolicy {
        direction: entry.direction(),
        kind: entry.kind(),
        action: Cleartext::of(entry),
        origin: if written.has_policy(entry) {
            PolicyOrigin::PolicyFiles
        } else {
            PolicyOrigin::Programs
        },
        is_held: entry.is_held(),
        priority: entry.precedence().priority(),
        selector: entry.selector(),
        mark: entry.mark(),
        if_id: entry.if_id(),
    })
}

/// Directions in which the defaults refuse, and by whose word.
pub(super) fn refusing(spd: &Spd, written: &FileOwned) -> Vec<(Direction, PolicyOrigin)> {
    let blocks = |defaults: DefaultActions, way| defaults.of(way) == Action::Block;
    let blocked = DIRECTIONS.into_iter().filter(|way| blocks(spd.defaults(), *way));
    let origin = |way| {
        if blocks(written.defaults(), way) {
            PolicyOrigin::PolicyFiles
        } else {
            PolicyOrigin::Programs
        }
    };
    blocked.map(|way| (way, origin(way))).collect()
}

/// Writes the lines, and counts and sums them up.
fn put(
    out: impl io::Write,
    defaults: &[(Direction, PolicyOrigin)],
    policies: impl Iterator<Item = SavedPolicy>,
) -> io::Result<()> {
    let mut out = ChecksumWriter { out, sum: crc32fast::Hasher::new() };
    writeln!(out, "{FIRST_LINE}")?;
    for (direction, origin) in defaults {
        writeln!(out, "default {} {}", word(*direction), origin.word())?;
    }
    let mut count = 0_usize;
    for policy in policies {
        writeln!(out, "{}", Line(&policy))?;
        count += 1;
    }
    let ChecksumWriter { mut out, sum } = out;
    writeln!(out, "end {count} {:08x}", sum.finalize())?;
    out.flush()
}

/// Computes the checksum of what it writes to a file.
struct ChecksumWriter<W> {
    out: W,
    sum: crc32fast::Hasher,
}

impl<W: io::Write> io::Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl SavedPolicies {
    /// Of policies of which files made `written`.
    #[cfg(test)]
    pub(crate) fn of(spd: &Spd, written: &FileOwned) -> Self {
        Self { defaults: refusing(spd, written), policies: portray(spd, written).collect() }
    }

    #[cfg(test)]
    pub(crate) fn to_text(&self) -> String {
        let mut text = Vec::new();
        put(&mut text, &self.defaults, self.policies.iter().cloned()).expect("there is memory");
        String::from_utf8(text).expect("it is ASCII")
    }

    /// Of a run of which something is known to have been, but not what: anything may have been
    /// protected.
    pub(crate) fn unknown() -> Self {
        let all = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        let all = all.map(|address| Prefix::new(address, 0).ok());
        let ways = DIRECTIONS.into_iter();
        let ways = ways.flat_map(|way| all.into_iter().flatten().map(move |all| (way, all)));
        Self {
            defaults: Vec::new(),
            policies: ways.map(|(way, all)| SavedPolicy::of_all(way, all)).collect(),
        }
    }

    /// `None` where the text is no whole portrait.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let last = text.strip_suffix('\n')?.rfind('\n')? + 1;
        let (covered, end) = text.split_at(last);
        let (count, checksum) = end.strip_prefix("end ")?.trim_end().split_once(' ')?;
        if u32::from_str_radix(checksum, 16) != Ok(crc32fast::hash(covered.as_bytes())) {
            return None;
        }
        let mut lines = covered.lines();
        lines.next().filter(|line| *line == FIRST_LINE)?;
        let mut saved = Self::default();
        for line in lines {
            let mut words = Words(line.split_ascii_whitespace());
            if line.starts_with("default ") {
                words.next()?;
                saved.defaults.push((words.direction()?, words.origin()?));
            } else {
                saved.policies.push(words.policy()?);
            }
        }
        (count.parse() == Ok(saved.policies.len())).then_some(saved)
    }
}

const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Forward, Direction::Out];

const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Forward => "fwd",
        Direction::Out => "out",
    }
}

impl PolicyOrigin {
    const fn word(self) -> &'static str {
        match self {
            Self::PolicyFiles => "files",
            Self::Programs => "programs",
        }
    }
}

/// A policy as a line of the file.
struct Line<'a>(&'a SavedPolicy);

impl fmt::Display for Line<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SavedPolicy { direction, kind, action, origin, is_held, priority, .. } = self.0;
        let SavedPolicy { selector, mark, if_id, .. } = self.0;
        let kind = match kind {
            PolicyKind::Main => "main",
            PolicyKind::Sub => "sub",
        };
        let action = match action {
            Cleartext::Pass => "pass",
            Cleartext::Refuse => "refuse",
        };
        let held = if *is_held { "held" } else { "live" };
        let (direction, origin) = (word(*direction), origin.word());
        write!(out, "{direction} {kind} {action} {origin} {held} {} ", priority.0)?;
        let Selector { source, destination, protocol, ifindex, user, .. } = selector;
        write!(out, "{source} {destination} {protocol} ")?;
        for PortMask { value, mask } in [selector.source_port, selector.destination_port] {
            write!(out, "{value}/{mask} ")?;
        }
        write!(out, "{ifindex} {user} {}/{} {}", mark.value, mark.mask, if_id.0)
    }
}

/// For people.
impl fmt::Display for SavedPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Selector { source, destination, protocol, .. } = self.selector;
        write!(out, "src {source} dst {destination}")?;
        if protocol != 0 {
            write!(out, " proto {protocol}")?;
        }
        for (name, port) in
            [("sport", self.selector.source_port), ("dport", self.selector.destination_port)]
        {
            if port.mask != 0 {
                write!(out, " {name} {}", port.value)?;
            }
        }
        write!(out, " dir {}", word(self.direction))
    }
}

/// The words of a line.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn read<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    fn pair<T: FromStr>(&mut self) -> Option<(T, T)> {
        let (one, other) = self.next()?.split_once('/')?;
        Some((one.parse().ok()?, other.parse().ok()?))
    }

    fn direction(&mut self) -> Option<Direction> {
        let said = self.next()?;
        DIRECTIONS.into_iter().find(|direction| word(*direction) == said)
    }

    fn origin(&mut self) -> Option<PolicyOrigin> {
        let said = self.next()?;
        [PolicyOrigin::PolicyFiles, PolicyOrigin::Programs]
            .into_iter()
            .find(|origin| origin.word() == said)
    }

    fn one_of<T>(&mut self, words: [(&str, T); 2]) -> Option<T> {
        let said = self.next()?;
        words.into_iter().find_map(|(word, value)| (word == said).then_some(value))
    }

    fn prefix(&mut self) -> Option<Prefix> {
        let (address, length) = self.next()?.split_once('/')?;
        Prefix::new(address.parse().ok()?, length.parse().ok()?).ok()
    }

    fn ports(&mut self) -> Option<PortMask> {
        self.pair().map(|(value, mask)| PortMask { value, mask })
    }

    fn policy(&mut self) -> Option<SavedPolicy> {
        let direction = self.direction()?;
        let kind = self.one_of([("main", PolicyKind::Main), ("sub", PolicyKind::Sub)])?;
        let action = self.one_of([("pass", Cleartext::Pass), ("refuse", Cleartext::Refuse)])?;
        let origin = self.origin()?;
        let is_held = self.one_of([("held", true), ("live", false)])?;
        let priority = Priority(self.read()?);
        let (source, destination) = (self.prefix()?, self.prefix()?);
        if source.family() != destination.family() {
            return None;
        }
        let selector = Selector {
            source,
            destination,
            protocol: self.read()?,
            source_port: self.ports()?,
            destination_port: self.ports()?,
            ifindex: self.read()?,
            user: self.read()?,
        };
        let mark = self.pair().map(|(value, mask)| Mark { value, mask })?;
        let if_id = IfId(self.read()?);
        let is_all = self.next().is_none();
        let policy = SavedPolicy {
            direction,
            kind,
            action,
            origin,
            is_held,
            priority,
            selector,
            mark,
            if_id,
        };
        is_all.then_some(policy)
    }
}

/// Where it is in a state directory.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// The portrait in a directory; `None` where there is none.
///
/// # Errors
/// What keeps it from being used.
pub(super) fn read(directory: &Path) -> io::Result<Option<SavedPolicies>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path(directory));
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let about = file.metadata()?;
    let own = Uid::effective().as_raw();
    if !about.is_file() || about.len() > LARGEST {
        return Err(io::Error::other("that is no file that uxfrm has written"));
    }
    if about.uid() != own && (own != 0 || about.mode() & 0o022 != 0) {
        return Err(io::Error::other("the file is somebody else's; `rm` it"));
    }
    let text = io::read_to_string(file)?;
    let saved = SavedPolicies::parse(&text)
        .ok_or_else(|| io::Error::other("the file is damaged, or another release's"))?;
    Ok(Some(saved))
}

/// A new file beside the current one, which it will replace.
#[derive(Debug)]
pub(super) struct DraftFile(File);

impl DraftFile {
    /// Of policies of which files made `written`.
    pub(super) fn write(directory: &Path, spd: &Spd, written: &FileOwned) -> io::Result<Self> {
        // What is left of another is not opened: it may be a FIFO, or lead elsewhere.
        remove_if_there(&directory.join(NEW))?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join(NEW))?;
        put(BufWriter::new(&file), &refusing(spd, written), portray(spd, written))?;
        Ok(Self(file))
    }

    /// Has it stand there, lasting when this returns. After an error the old one stands.
    pub(super) fn settle(self, directory: &Path) -> io::Result<()> {
        self.0.sync_all()?;
        fs::rename(directory.join(NEW), path(directory))?;
        File::open(directory)?.sync_all()
    }
}

pub(super) fn remove(directory: &Path) -> io::Result<()> {
    remove_if_there(&path(directory))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
