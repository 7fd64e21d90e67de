//! `ip link add|change|del|show` of tunnels (`ip/iplink.c: iplink_parse`).

use uxfrm_cli_grammar::{self as words, Cursor, is_abbreviation};
use uxfrm_tunnel::{TunnelConfig, TunnelKind};

use crate::{Error, tunnel};

/// What is to be done with a tunnel's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// `link add`
    Add(TunnelLink),
    /// `link change`: omitted options are kept.
    Change(LinkChange),
    /// `link del`
    Delete {
        /// The interface.
        name: String,
    },
    /// `link show`
    Show(LinkFilter),
}

/// Which tunnels are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFilter {
    /// Only this one.
    pub name: Option<String>,
    /// Only those of this kind.
    pub kind: Option<TunnelKind>,
    /// Only those that are up.
    pub is_up: bool,
}

/// Whether an interface is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `up`
    Up,
    /// `down`
    Down,
}

/// A tunnel and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelLink {
    /// The interface's name: 1 to 15 bytes.
    pub name: String,
    /// The interface's MTU; by the way to the other end where it is not said.
    pub mtu: Option<u16>,
    /// Whether it is to be up, where that is said.
    pub admin: Option<Admin>,
    /// The tunnel, which can be: [`uxfrm_tunnel::Tunnel::new`] takes it.
    pub config: TunnelConfig,
}

/// What is to be different about a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkChange {
    /// The interface's name.
    pub name: String,
    mtu: Option<u16>,
    admin: Option<Admin>,
    kind: TunnelKind,
    words: Vec<String>,
}

impl LinkChange {
    /// Applies the change to a tunnel (`ip/link_iptnl.c: iptunnel_parse_opt` asks for the present
    /// one too). For another kind it begins from defaults, which the gateway refuses.
    ///
    /// # Errors
    /// What is wrong with the words, or with the tunnel that comes of them.
    pub fn onto(&self, before: &TunnelConfig) -> Result<TunnelLink, Error> {
        let base = if before.kind == self.kind { before.clone() } else { tunnel::fresh(self.kind) };
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let config = tunnel::read(base, &mut Cursor::new(&words))?;
        uxfrm_tunnel::Tunnel::new(&self.name, config.clone())?;
        Ok(TunnelLink { name: self.name.clone(), mtu: self.mtu, admin: self.admin, config })
    }
}

pub(crate) const COMMANDS: &str = "add, change, del or show";

pub(crate) fn read(cursor: &mut Cursor<'_, '_>) -> Result<LinkAction, Error> {
    let Some(word) = cursor.take() else { return Ok(LinkAction::Show(LinkFilter::default())) };
    if is_abbreviation(word, "add") {
        let KernelLink { name, mtu, admin, kind } = device(cursor)?;
        let config = tunnel::read(tunnel::fresh(kind), cursor)?;
        uxfrm_tunnel::Tunnel::new(&name, config.clone())?;
        Ok(LinkAction::Add(TunnelLink { name, mtu, admin, config }))
    } else if is_abbreviation(word, "change") {
        let KernelLink { name, mtu, admin, kind } = device(cursor)?;
        let words = std::iter::from_fn(|| cursor.take()).map(str::to_owned).collect();
        Ok(LinkAction::Change(LinkChange { name, mtu, admin, kind, words }))
    } else if is_abbreviation(word, "delete") {
        cursor.skip("dev");
        Ok(LinkAction::Delete { name: name(cursor)? })
    } else if ["show", "list", "lst"].iter().any(|show| is_abbreviation(word, show)) {
        filter(cursor).map(LinkAction::Show)
    } else {
        Err(words::Error::command(word, COMMANDS).into())
    }
}

fn filter(cursor: &mut Cursor<'_, '_>) -> Result<LinkFilter, Error> {
    let mut filter = LinkFilter::default();
    while let Some(word) = cursor.take() {
        match word {
            "up" => filter.is_up = true,
            "type" => filter.kind = Some(kind(cursor)?),
            "dev" => filter.name = Some(name(cursor)?),
            word => filter.name = Some(checked(word)?),
        }
    }
    Ok(filter)
}

/// What stands before a tunnel's own options.
struct KernelLink {
    name: String,
    mtu: Option<u16>,
    admin: Option<Admin>,
    kind: TunnelKind,
}

fn device(cursor: &mut Cursor<'_, '_>) -> Result<KernelLink, Error> {
    let (mut named, mut mtu, mut admin) = (None, None, None);
    loop {
        match cursor.take() {
            None => return Err(if named.is_none() { Error::LinkName } else { Error::LinkType }),
            Some("name" | "dev") => named = Some(name(cursor)?),
            Some("mtu") => mtu = Some(cursor.number("an MTU")?),
            Some("up") => admin = Some(Admin::Up),
            Some("down") => admin = Some(Admin::Down),
            Some("type") => {
                let kind = kind(cursor)?;
                return Ok(KernelLink { name: named.ok_or(Error::LinkName)?, mtu, admin, kind });
            }
            Some(word) if named.is_none() => named = Some(checked(word)?),
            Some(word) => {
                let known = "name, mtu, up, down or type";
                return Err(words::Error::option(word, known).into());
            }
        }
    }
}

fn kind(cursor: &mut Cursor<'_, '_>) -> Result<TunnelKind, words::Error> {
    let word = cursor.next("a type")?;
    let kind = TunnelKind::ALL.into_iter().find(|kind| kind.name() == word);
    let what = "the type is ipip, sit, gre, ip6tnl or ip6gre";
    kind.ok_or_else(|| words::Error::argument(word, what))
}

fn name(cursor: &mut Cursor<'_, '_>) -> Result<String, words::Error> {
    checked(cursor.next("a name")?)
}

/// Whether the kernel accepts an interface name (`dev_valid_name`), except `%d`, which it replaces.
#[must_use]
pub fn is_name(word: &str) -> bool {
    let fits = (1..16).contains(&word.len()) && word != "." && word != "..";
    fits && !word.contains(|c: char| c.is_whitespace() || ['/', ':', '%'].contains(&c))
}

fn checked(word: &str) -> Result<String, words::Error> {
    if is_name(word) {
        return Ok(word.to_owned());
    }
    Err(words::Error::argument(word, "not a valid ifname"))
}
