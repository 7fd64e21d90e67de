//! `state COMMAND …` (`ip/xfrm_state.c`).

mod config;

use uxfrm_engine::{Mark, Mode, Reqid, SaProtocol, Spi};

pub use self::config::{EncapArgs, ReplayArgs, StateArgs, StateClause};
use super::{
    command::{Line, SpiRequest, StateKey, Topic, XfrmCommand},
    cursor::{Cursor, SyntaxError},
    filter::StateFilter,
    id,
    keyword::{
        FLUSH_STATES, ID, MARK, MODES, SPI_REQUEST, STATE_COMMANDS, STATE_DIRECTIONS, STATE_FILTER,
        SpiRequestWord, StateCommand, StateFilterWord, words_of,
    },
    mark, protocol,
};

/// Behind `state`: without a command it is `list`.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    if cursor.is_at_end() {
        let filter = StateFilter { family: cursor.family, ..Default::default() };
        return Ok(Line::Command(XfrmCommand::StateList(filter)));
    }
    Ok(Line::Command(match cursor.abbreviated(&STATE_COMMANDS)? {
        StateCommand::Add => XfrmCommand::StateAdd(config::parse(cursor)?),
        StateCommand::Update => XfrmCommand::StateUpdate(config::parse(cursor)?),
        StateCommand::AllocSpi => XfrmCommand::StateAllocSpi(parse_spi_request(cursor)?),
        StateCommand::Delete => XfrmCommand::StateDelete(parse_key(cursor)?),
        StateCommand::Get => XfrmCommand::StateGet(parse_key(cursor)?),
        StateCommand::DeleteAll => XfrmCommand::StateDeleteAll(parse_filter(cursor)?.0),
        StateCommand::List => match parse_filter(cursor)? {
            (filter, Keys::Shown) => XfrmCommand::StateList(filter),
            (filter, Keys::Hidden) => XfrmCommand::StateListWithoutKeys(filter),
        },
        StateCommand::Flush => parse_flush(cursor)?,
        StateCommand::Count => XfrmCommand::StateCount,
        StateCommand::Help => return Ok(Line::Help(Topic::State)),
    }))
}

/// `{ delete | get } ID [mark MARK [mask MASK]]`
fn parse_key(cursor: &mut Cursor<'_, '_>) -> Result<StateKey, SyntaxError> {
    let mut id = None;
    let mut mark = Mark::default();
    while let Some(word) = cursor.peek() {
        if cursor.keyword(&MARK).is_some() {
            mark = mark::parse(cursor)?;
        } else if id.is_some() && id::begins(cursor) {
            return Err(cursor.misplaced(word, TWO_IDS));
        } else if id::begins(cursor) {
            id = Some(id::parse(cursor)?);
        } else {
            return Err(cursor.unknown(&words_of!(ID, MARK)));
        }
    }
    let id = id.ok_or_else(|| cursor.refuse(NO_ID))?.full(cursor, cursor.family)?;
    // As `ip` does it: a mark that no bit of the value is in is not sent.
    let mark = if mark.value & mark.mask == 0 { Mark::default() } else { mark };
    Ok(StateKey { id: id.id, source: id.source, mark })
}

const TWO_IDS: &str = "unknown; the ID (src dst proto spi) has to stand in one place";
const NO_ID: &str = "Not enough information: ID is required";

/// `allocspi ID [mode MODE] [mark MARK [mask MASK]] [reqid REQID] [dir DIR] [seq SEQ]
/// [min SPI max SPI] [pcpu-num CPUNUM]`
fn parse_spi_request(cursor: &mut Cursor<'_, '_>) -> Result<SpiRequest, SyntaxError> {
    let (mut id, mut min, mut max, mut direction, mut pcpu) = (None, None, None, None, None);
    let (mut mode, mut reqid, mut acquire_seq, mut mark) =
        (Mode::Transport, Reqid::default(), 0, Mark::default());
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&SPI_REQUEST) {
            Some(SpiRequestWord::Mode) => mode = cursor.abbreviated_choice(&MODES)?,
            Some(SpiRequestWord::Mark) => mark = mark::parse(cursor)?,
            Some(SpiRequestWord::Reqid) => reqid = Reqid(cursor.number()?),
            Some(SpiRequestWord::Seq) => acquire_seq = cursor.number()?,
            Some(SpiRequestWord::Min) if min.is_some() => return Err(cursor.duplicate("min", word)),
            Some(SpiRequestWord::Min) => min = Some(cursor.number()?),
            Some(SpiRequestWord::Max) if max.is_some() => return Err(cursor.duplicate("max", word)),
            Some(SpiRequestWord::Max) => max = Some(cursor.number()?),
            Some(SpiRequestWord::Direction) => direction = Some(cursor.choice(&STATE_DIRECTIONS)?),
            Some(SpiRequestWord::Pcpu) => pcpu = parse_pcpu(cursor)?,
            None if id.is_some() && id::begins(cursor) => {
                return Err(cursor.misplaced(word, TWO_IDS));
            }
            None if id::begins(cursor) => id = Some(id::parse(cursor)?),
            None => return Err(cursor.unknown(&words_of!(ID, SPI_REQUEST))),
        }
    }
    let id = id.ok_or_else(|| cursor.refuse(NO_ID))?.full(cursor, cursor.family)?;
    if id.id.spi != Spi(0) {
        return Err(cursor.refuse("\"spi\" is invalid"));
    }
    let mark = if mark.value & mark.mask == 0 { Mark::default() } else { mark };
    let (min, max) = spi_range((min, max), id.id.protocol, cursor)?;
    let id::FullId { source, id } = id;
    Ok(SpiRequest { id, source, mode, reqid, acquire_seq, mark, min, max, direction, pcpu })
}

/// The defaults are PF_KEY's (`net/key/af_key.c: pfkey_getspi`).
fn spi_range(
    range: (Option<u32>, Option<u32>),
    protocol: SaProtocol,
    cursor: &Cursor<'_, '_>,
) -> Result<(u32, u32), SyntaxError> {
    match range {
        (Some(min), Some(max)) if min > max => {
            Err(cursor.refuse("value after \"min\" is larger than value after \"max\""))
        }
        (Some(min), Some(max)) => Ok((min, max)),
        (Some(_), None) => Err(cursor.refuse("\"max\" is missing")),
        (None, Some(_)) => Err(cursor.refuse("\"min\" is missing")),
        (None, None) if protocol == SaProtocol::Comp => Ok((0x100, 0xffff)),
        (None, None) => Ok((0x100, 0x0fff_ffff)),
    }
}

/// Whether a list shows keys.
enum Keys {
    Shown,
    Hidden,
}

/// `{ deleteall | list } [nokeys] [ID] [mode MODE] [reqid REQID] [flag FLAG-LIST]`
fn parse_filter(cursor: &mut Cursor<'_, '_>) -> Result<(StateFilter, Keys), SyntaxError> {
    let mut filter = StateFilter { family: cursor.family, ..Default::default() };
    let mut keys = Keys::Shown;
    let mut has_id = false;
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&STATE_FILTER) {
            Some(StateFilterWord::NoKeys) => keys = Keys::Hidden,
            Some(StateFilterWord::Mode) => filter.mode = Some(cursor.abbreviated_choice(&MODES)?),
            Some(StateFilterWord::Reqid) => filter.reqid = Some(Reqid(cursor.number()?)),
            Some(StateFilterWord::Flag) => filter.flags = Some(config::parse_flags(cursor)?),
            None if has_id && id::begins(cursor) => return Err(cursor.misplaced(word, TWO_IDS)),
            None if id::begins(cursor) => {
                let id = id::parse(cursor)?;
                has_id = true;
                filter = StateFilter {
                    family: id.ends.family,
                    source: id.ends.source,
                    destination: id.ends.destination,
                    protocol: id.protocol,
                    spi: id.spi,
                    ..filter
                };
            }
            None => return Err(cursor.unknown(&words_of!(STATE_FILTER, ID))),
        }
    }
    Ok((filter, keys))
}

/// `flush [proto XFRM-PROTO]`
fn parse_flush(cursor: &mut Cursor<'_, '_>) -> Result<XfrmCommand, SyntaxError> {
    let mut protocol = None;
    while let Some(word) = cursor.peek() {
        cursor.exactly(&FLUSH_STATES)?;
        if protocol.is_some() {
            return Err(cursor.duplicate("proto", word));
        }
        protocol = Some(protocol::parse_ipsec(cursor)?);
    }
    Ok(XfrmCommand::StateFlush { protocol })
}

/// All bits set is no CPU.
fn parse_pcpu(cursor: &mut Cursor<'_, '_>) -> Result<Option<u32>, SyntaxError> {
    Ok(Some(cursor.number()?).filter(|number| *number != u32::MAX))
}
