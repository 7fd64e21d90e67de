//! `tmpl ID [mode MODE] [reqid REQID] [level LEVEL]`.

use std::net::IpAddr;

use uxfrm_engine::{Family, Mode, Reqid, SaProtocol, Spi, TemplateLevel};

use super::{
    cursor::{Cursor, SyntaxError},
    id::{self, Id},
    keyword::{ID, LEVELS, MODES, TEMPLATE, TemplateWord, words_of},
};

/// A template whose family may default to the policy's, which may come later in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateArgs {
    /// `src`
    pub source: Option<IpAddr>,
    /// `dst`
    pub destination: Option<IpAddr>,
    /// Of the addresses, else the preferred one when the template began.
    pub family: Option<Family>,
    /// `proto`
    pub protocol: SaProtocol,
    /// `spi`
    pub spi: Spi,
    /// `mode`
    pub mode: Mode,
    /// `reqid`
    pub reqid: Reqid,
    /// `level`
    pub level: TemplateLevel,
}

/// Of an ID whose words stand apart: the second part is no more the template's.
pub(super) const TWO_IDS: &str = "unknown; src, dst, proto and spi of a tmpl have to stand together, \
     and the SELECTOR in one place";

/// Behind `tmpl`: up to a word of no template, or a second ID (`ip/xfrm_policy.c:
/// xfrm_tmpl_parse`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<TemplateArgs, SyntaxError> {
    let (mut id, mut mode, mut reqid, mut level) =
        (None, Mode::Transport, Reqid::default(), TemplateLevel::Required);
    let preferred = cursor.family;
    if !begins(cursor) {
        return Err(cursor.unknown(&words_of!(ID, TEMPLATE)));
    }
    loop {
        match cursor.keyword(&TEMPLATE) {
            Some(TemplateWord::Mode) => mode = cursor.abbreviated_choice(&MODES)?,
            Some(TemplateWord::Reqid) => reqid = Reqid(cursor.number()?),
            Some(TemplateWord::Level) => level = cursor.choice(&LEVELS)?,
            None if id.is_none() && id::begins(cursor) => {
                // A tunnel's ends may be of another family than what goes through it.
                cursor.family = None;
                let words = id::parse(cursor)?;
                cursor.family = words.ends.family;
                id = Some(words);
            }
            None => break,
        }
    }
    let id: Id = id.unwrap_or_default();
    if id.protocol.is_none()
        && id::begins(cursor)
        && let Some(word) = cursor.peek()
    {
        return Err(cursor.misplaced(word, TWO_IDS));
    }
    Ok(TemplateArgs {
        source: id.ends.source.map(|prefix| prefix.address()),
        destination: id.ends.destination.map(|prefix| prefix.address()),
        family: id.ends.family.or(preferred),
        protocol: id.protocol.ok_or_else(|| cursor.required("XFRM-PROTO"))?,
        spi: id.spi.unwrap_or_default(),
        mode,
        reqid,
        level,
    })
}

fn begins(cursor: &Cursor<'_, '_>) -> bool {
    id::begins(cursor) || cursor.peek().is_some_and(|word| TEMPLATE.exact(word.text()).is_some())
}
