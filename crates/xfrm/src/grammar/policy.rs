//! `policy COMMAND …` (`ip/xfrm_policy.c`).

mod config;

use uxfrm_engine::{Action, Family, IfId, Mark, PolicyIndex, Priority};

pub use self::config::PolicyArgs;
use super::{
    command::{Hthresh, Line, PolicyKeyArgs, PolicyTarget, Topic, XfrmCommand},
    cursor::{Cursor, SyntaxError},
    error::one_of,
    filter::PolicyFilter,
    flags,
    keyword::{
        ACTIONS, DEFAULT_ACTIONS, FLUSH_POLICIES, POLICY_COMMANDS, POLICY_DEFAULTS,
        POLICY_DIRECTIONS, POLICY_FILTER, POLICY_FLAGS, POLICY_KEY, POLICY_KINDS, PolicyCommand,
        PolicyFilterWord, PolicyKeyWord, SELECTOR, THRESHOLDS, UPPER, words_of,
    },
    mark, selector,
};

/// Behind `policy`: without a command it is `list`.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    if cursor.is_at_end() {
        return Ok(Line::Command(XfrmCommand::PolicyList(parse_filter(cursor)?)));
    }
    Ok(Line::Command(match cursor.abbreviated(&POLICY_COMMANDS)? {
        PolicyCommand::Add => XfrmCommand::PolicyAdd(config::parse(cursor)?),
        PolicyCommand::Update => XfrmCommand::PolicyUpdate(config::parse(cursor)?),
        PolicyCommand::Delete => XfrmCommand::PolicyDelete(parse_key(cursor)?),
        PolicyCommand::Get => XfrmCommand::PolicyGet(parse_key(cursor)?),
        PolicyCommand::DeleteAll => XfrmCommand::PolicyDeleteAll(parse_filter(cursor)?),
        PolicyCommand::List => XfrmCommand::PolicyList(parse_filter(cursor)?),
        PolicyCommand::Flush => parse_flush(cursor)?,
        PolicyCommand::Count => XfrmCommand::PolicyCount,
        PolicyCommand::Set => parse_thresholds(cursor)?,
        PolicyCommand::SetDefault => parse_defaults(cursor)?,
        PolicyCommand::GetDefault => XfrmCommand::GetDefault,
        PolicyCommand::Help => return Ok(Line::Help(Topic::Policy)),
    }))
}

const TWO_SELECTORS: &str = "unknown; the SELECTOR has to stand in one place";
const NO_DIRECTION: &str = "Not enough information: DIR is required";

/// `{ delete | get } { SELECTOR | index INDEX } dir DIR [ctx CTX] [mark MARK [mask MASK]]
/// [ptype PTYPE] [if_id IF_ID]`
fn parse_key(cursor: &mut Cursor<'_, '_>) -> Result<PolicyKeyArgs, SyntaxError> {
    let (mut direction, mut index, mut kind, mut selector) = (None, None, None, None);
    let (mut mark, mut if_id, mut context) = (Mark::default(), None, None);
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&POLICY_KEY) {
            Some(PolicyKeyWord::Direction) if direction.is_some() => {
                return Err(cursor.duplicate("dir", word));
            }
            Some(PolicyKeyWord::Direction) => direction = Some(cursor.choice(&POLICY_DIRECTIONS)?),
            Some(PolicyKeyWord::Context) if context.is_some() => {
                return Err(cursor.duplicate("ctx", word));
            }
            Some(PolicyKeyWord::Context) => context = Some(cursor.value()?.text().to_owned()),
            Some(PolicyKeyWord::Mark) => mark = mark::parse(cursor)?,
            Some(PolicyKeyWord::Index) if index.is_some() => {
                return Err(cursor.duplicate("index", word));
            }
            Some(PolicyKeyWord::Index) => index = Some(PolicyIndex(cursor.number()?)),
            Some(PolicyKeyWord::Kind) if kind.is_some() => {
                return Err(cursor.duplicate("ptype", word));
            }
            Some(PolicyKeyWord::Kind) => kind = Some(cursor.choice(&POLICY_KINDS)?),
            Some(PolicyKeyWord::IfId) => if_id = Some(IfId(cursor.number()?)),
            None if selector.is_some() && selector::begins(cursor) => {
                return Err(cursor.misplaced(word, TWO_SELECTORS));
            }
            None if selector::begins(cursor) => selector = Some(selector::parse(cursor)?),
            None => return Err(cursor.unknown(&words_of!(SELECTOR, UPPER, POLICY_KEY))),
        }
    }
    let direction = direction.ok_or_else(|| cursor.refuse(NO_DIRECTION))?;
    let target = match (selector, index) {
        (Some(selector), None) => {
            PolicyTarget::Selector(selector.selector(cursor.family.unwrap_or(Family::V4)))
        }
        (None, Some(index)) => PolicyTarget::Index(index),
        (None, None) => {
            let rule = "Not enough information: either SELECTOR or INDEX is required";
            return Err(cursor.refuse(rule));
        }
        (Some(_), Some(_)) => {
            return Err(cursor.refuse("either \"SELECTOR\" is duplicate, or \"INDEX\" is garbage"));
        }
    };
    // As `ip` does it: a mark that no bit of the value is in is not sent.
    let mark = if mark.value & mark.mask == 0 { Mark::default() } else { mark };
    Ok(PolicyKeyArgs { direction, target, mark, if_id, kind, context })
}

/// `{ deleteall | list } [nosock] [SELECTOR] [dir DIR] [index INDEX] [ptype PTYPE]
/// [action ACTION] …`
fn parse_filter(cursor: &mut Cursor<'_, '_>) -> Result<PolicyFilter, SyntaxError> {
    let mut filter = PolicyFilter::default();
    filter.selector.family = cursor.family;
    let mut has_selector = false;
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&POLICY_FILTER) {
            Some(PolicyFilterWord::Direction) => {
                filter.direction = Some(cursor.choice(&POLICY_DIRECTIONS)?);
            }
            Some(PolicyFilterWord::Index) => filter.index = Some(PolicyIndex(cursor.number()?)),
            Some(PolicyFilterWord::Kind) => filter.kind = Some(cursor.choice(&POLICY_KINDS)?),
            Some(PolicyFilterWord::Action) => filter.action = Some(cursor.choice(&ACTIONS)?),
            Some(PolicyFilterWord::Priority) => filter.priority = Some(Priority(cursor.number()?)),
            Some(PolicyFilterWord::Flag) => {
                filter.flags = Some(flags::parse(cursor, &POLICY_FLAGS)?);
            }
            Some(PolicyFilterWord::NoSockets) => filter.no_sockets = true,
            None if has_selector && selector::begins(cursor) => {
                return Err(cursor.misplaced(word, TWO_SELECTORS));
            }
            None if selector::begins(cursor) => {
                has_selector = true;
                filter.selector = selector::parse(cursor)?;
            }
            None => return Err(cursor.unknown(&words_of!(SELECTOR, UPPER, POLICY_FILTER))),
        }
    }
    Ok(filter)
}

/// `flush [ptype PTYPE]`
fn parse_flush(cursor: &mut Cursor<'_, '_>) -> Result<XfrmCommand, SyntaxError> {
    let mut kind = None;
    while let Some(word) = cursor.peek() {
        cursor.exactly(&FLUSH_POLICIES)?;
        if kind.is_some() {
            return Err(cursor.duplicate("ptype", word));
        }
        kind = Some(cursor.choice(&POLICY_KINDS)?);
    }
    Ok(XfrmCommand::PolicyFlush { kind })
}

/// `set [hthresh4 LBITS RBITS] [hthresh6 LBITS RBITS]`
fn parse_thresholds(cursor: &mut Cursor<'_, '_>) -> Result<XfrmCommand, SyntaxError> {
    let (mut v4, mut v6) = (None, None);
    while let Some(word) = cursor.peek() {
        let family = cursor.exactly(&THRESHOLDS)?;
        let (slot, keyword) = match family {
            Family::V4 => (&mut v4, "hthresh4"),
            Family::V6 => (&mut v6, "hthresh6"),
        };
        if slot.is_some() {
            return Err(cursor.duplicate(keyword, word));
        }
        *slot = Some(Hthresh {
            local: parse_bits(cursor, (keyword, "LBITS"), family)?,
            remote: parse_bits(cursor, (keyword, "RBITS"), family)?,
        });
    }
    Ok(XfrmCommand::SetHthresh { v4, v6 })
}

fn parse_bits(
    cursor: &mut Cursor<'_, '_>,
    part: (&'static str, &'static str),
    family: Family,
) -> Result<u8, SyntaxError> {
    let place = cursor.peek();
    let bits = cursor.number_operand(part.0, part.1)?;
    match place {
        Some(word) if bits > family.bits() => {
            Err(cursor.wrong(word, format!("a number from 0 to {}", family.bits())))
        }
        Some(_) | None => Ok(bits),
    }
}

/// `setdefault DIR ACTION [DIR ACTION] [DIR ACTION]`
fn parse_defaults(cursor: &mut Cursor<'_, '_>) -> Result<XfrmCommand, SyntaxError> {
    let (mut inbound, mut forward, mut outbound): (Option<Action>, _, _) = (None, None, None);
    while let Some(word) = cursor.peek() {
        let (slot, keyword) = match cursor.exactly(&POLICY_DEFAULTS)? {
            uxfrm_engine::Direction::In => (&mut inbound, "in"),
            uxfrm_engine::Direction::Forward => (&mut forward, "fwd"),
            uxfrm_engine::Direction::Out => (&mut outbound, "out"),
        };
        if slot.is_some() {
            return Err(cursor.duplicate(keyword, word));
        }
        *slot = Some(cursor.choice(&DEFAULT_ACTIONS)?);
    }
    if inbound.or(forward).or(outbound).is_none() {
        return Err(cursor.refuse(format!("DIR is required: {}", one_of(&POLICY_DEFAULTS.words()))));
    }
    Ok(XfrmCommand::SetDefault { inbound, forward, outbound })
}
