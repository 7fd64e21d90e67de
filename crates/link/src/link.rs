//! `ip link add|change|del` of tunnels (`ip/iplink.c: iplink_parse`).

use uxfrm_tunnel::{Config, Kind};

use crate::cursor::{Cursor, is_abbreviation};
use crate::{Error, tunnel};

/// What is to be done with a tunnel's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// `link add`
    Add(TunnelLink),
    /// `link change`, with all of the tunnel's options: iproute2 keeps those that are not said, uxfrm does not.
    Change(TunnelLink),
    /// `link del`
    Delete {
        /// The interface.
        name: String,
    },
}

/// A tunnel and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelLink {
    /// The interface's name: 1 to 15 bytes.
    pub name: String,
    /// The interface's MTU; by the way to the other end where it is not said.
    pub mtu: Option<u16>,
    /// The tunnel, which can be: [`uxfrm_tunnel::Tunnel::new`] takes it.
    pub config: Config,
}

pub(crate) fn read(cursor: &mut Cursor<'_, '_>) -> Result<Link, Error> {
    let word = cursor.next("add, change or del")?;
    if is_abbreviation(word, "add") {
        options(cursor).map(Link::Add)
    } else if is_abbreviation(word, "change") {
        options(cursor).map(Link::Change)
    } else if is_abbreviation(word, "delete") {
        cursor.skip("dev");
        Ok(Link::Delete { name: name(cursor)? })
    } else {
        Err(Error::Command { word: word.to_owned(), known: "add, change or del" })
    }
}

fn options(cursor: &mut Cursor<'_, '_>) -> Result<TunnelLink, Error> {
    let (mut named, mut mtu) = (None, None);
    loop {
        match cursor.take() {
            None => return Err(if named.is_none() { Error::LinkName } else { Error::LinkType }),
            Some("name" | "dev") => named = Some(name(cursor)?),
            Some("mtu") => mtu = Some(cursor.number("an MTU")?),
            Some("type") => {
                let config = tunnel::read(kind(cursor)?, cursor)?;
                let name = named.ok_or(Error::LinkName)?;
                uxfrm_tunnel::Tunnel::new(&name, config.clone())?;
                return Ok(TunnelLink { name, mtu, config });
            }
            Some(word) if named.is_none() => named = Some(checked(word)?),
            Some(word) => {
                return Err(Error::Option { word: word.to_owned(), known: "name, mtu or type" });
            }
        }
    }
}

fn kind(cursor: &mut Cursor<'_, '_>) -> Result<Kind, Error> {
    let word = cursor.next("a type")?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == word);
    kind.ok_or_else(|| Error::Argument {
        word: word.to_owned(),
        what: "the type is ipip, sit, gre, ip6tnl or ip6gre",
    })
}

fn name(cursor: &mut Cursor<'_, '_>) -> Result<String, Error> {
    checked(cursor.next("a name")?)
}

/// What the kernel takes for a name (`dev_valid_name`), and not `%d`, which would become another.
fn checked(word: &str) -> Result<String, Error> {
    let fits = (1..16).contains(&word.len()) && word != "." && word != "..";
    if fits && !word.contains(['/', ':', '%']) {
        return Ok(word.to_owned());
    }
    Err(Error::Argument { word: word.to_owned(), what: "not a valid ifname" })
}
