//! `state { add | update }`: the whole of a state.

use std::{net::IpAddr, num::NonZeroU32};

use uxfrm_engine::{
    Direction, Family, IfId, KeepaliveInterval, LifetimeLimits, Mark, Mode, Offload, OffloadKind,
    Reqid, SaExtraFlags, SaFlags, SaId, SaProtocol, UdpEncapKind,
};

use super::{NO_ID, TWO_IDS, parse_pcpu};
use crate::grammar::{
    address,
    algorithm::{self, Algorithm},
    cursor::{Cursor, SyntaxError},
    error::Position,
    flags,
    id::{self, FullId, Id},
    keyword::{
        DEVICE, DIRECTION, ENCAPS, ID, MODES, OFFLOADS, STATE, STATE_DIRECTIONS, STATE_EXTRA_FLAGS,
        STATE_FLAGS, StateWord, words_of,
    },
    lexer::Word,
    limit,
    mark::{self, OutputMarkArgs},
    protocol,
    selector::{self, SelectorFilter},
};

/// `XFRMA_REPLAY_ESN_MAX`, in packets.
const LONGEST_WINDOW: u32 = 4096;

/// A state as a line has it.
#[derive(Debug)]
pub struct StateArgs {
    /// Destination, SPI and protocol.
    pub id: SaId,
    /// `src`; unspecified if not named.
    pub source: IpAddr,
    /// `mode`
    pub mode: Mode,
    /// `reqid`
    pub reqid: Reqid,
    /// `seq`, as it is written: iproute2 sends it in network byte order.
    pub acquire_seq: u32,
    /// `mark`; none with mask 0.
    pub mark: Mark,
    /// `output-mark`, `set-mark`
    pub output_mark: OutputMarkArgs,
    /// `if_id`
    pub if_id: Option<IfId>,
    /// `replay-*`
    pub replay: ReplayArgs,
    /// `flag`
    pub flags: SaFlags,
    /// `extra-flag`
    pub extra_flags: SaExtraFlags,
    /// `sel`
    pub selector: Option<SelectorFilter>,
    /// `limit`
    pub limits: LifetimeLimits,
    /// What iproute2 sends in the order in which it is written.
    pub parts: Vec<StateClause>,
    /// `offload`
    pub offload: Option<Offload>,
    /// `tfcpad`
    pub tfc_padding: u32,
    /// `dir`
    pub direction: Option<Direction>,
    /// `pcpu-num`
    pub pcpu: Option<u32>,
    /// `nat-keepalive`; iproute2 has no word for it.
    pub nat_keepalive: Option<KeepaliveInterval>,
    /// `mtimer-thresh`; iproute2 has no word for it.
    pub mapping_age: Option<NonZeroU32>,
    /// Position of the last word, for errors about the whole.
    pub end: Position,
}

/// A part of a state whose place in the request is that in the line.
#[derive(Debug)]
pub enum StateClause {
    /// `encap`
    Encap(EncapArgs),
    /// `coa`
    CareOf(IpAddr),
    /// `ctx`
    Context(String),
    /// `enc`, `auth`, `auth-trunc`, `aead`, `comp`
    Algorithm(Algorithm),
}

/// Lower and upper halves apart, as the line has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayArgs {
    /// `replay-window`
    pub window: u32,
    /// `replay-seq`, `replay-seq-hi`
    pub received: [u32; 2],
    /// `replay-oseq`, `replay-oseq-hi`
    pub sent: [u32; 2],
}

/// `encap`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncapArgs {
    /// `espinudp` and its kin.
    pub kind: UdpEncapKind,
    /// `SPORT`
    pub source_port: u16,
    /// `DPORT`
    pub destination_port: u16,
    /// `OADDR`; `None` for `any`, which is of the state's family.
    pub original_address: Option<IpAddr>,
}

/// The words so far.
#[derive(Default)]
struct Draft {
    id: Option<Id>,
    mode: Option<Mode>,
    reqid: Reqid,
    acquire_seq: u32,
    mark: Mark,
    output_mark: OutputMarkArgs,
    if_id: Option<IfId>,
    replay: ReplayArgs,
    flags: SaFlags,
    extra_flags: SaExtraFlags,
    selector: Option<SelectorFilter>,
    limits: LifetimeLimits,
    parts: Vec<StateClause>,
    offload: Option<Offload>,
    tfc_padding: u32,
    direction: Option<Direction>,
    pcpu: Option<u32>,
    nat_keepalive: Option<KeepaliveInterval>,
    mapping_age: Option<NonZeroU32>,
}

/// Behind `add` or `update` (`ip/xfrm_state.c: xfrm_state_modify`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Box<StateArgs>, SyntaxError> {
    let preferred = cursor.family;
    let mut state = Draft { limits: limit::NONE, ..Draft::default() };
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&STATE) {
            Some(keyword) => state.parse(keyword, word, cursor)?,
            None if state.id.is_some() && id::begins(cursor) => {
                return Err(cursor.misplaced(word, TWO_IDS));
            }
            None if id::begins(cursor) => {
                let id = id::parse(cursor)?;
                cursor.family = cursor.family.or(id.ends.family);
                state.id = Some(id);
            }
            None if state.id.is_none() => return Err(cursor.unknown(&words_of!(ID, STATE))),
            None => return Err(cursor.unknown(&STATE.words())),
        }
    }
    state.finish(preferred, cursor).map(Box::new)
}

impl Draft {
    /// The value of `keyword`, which stands in `word`.
    fn parse(
        &mut self,
        keyword: StateWord,
        word: &Word<'_>,
        cursor: &mut Cursor<'_, '_>,
    ) -> Result<(), SyntaxError> {
        match keyword {
            StateWord::Mode => self.mode = Some(cursor.abbreviated_choice(&MODES)?),
            StateWord::Mark => self.mark = mark::parse(cursor)?,
            StateWord::Reqid => self.reqid = Reqid(cursor.number()?),
            StateWord::Seq => self.acquire_seq = cursor.number()?,
            StateWord::ReplayWindow => self.replay.window = parse_window(cursor)?,
            StateWord::ReplaySeq => self.replay.received[0] = cursor.number()?,
            StateWord::ReplaySeqHi => self.replay.received[1] = cursor.number()?,
            StateWord::ReplayOseq => self.replay.sent[0] = cursor.number()?,
            StateWord::ReplayOseqHi => self.replay.sent[1] = cursor.number()?,
            StateWord::Flag => self.flags |= parse_flags(cursor)?,
            StateWord::ExtraFlag => self.extra_flags |= parse_extra_flags(cursor)?,
            StateWord::Selector => self.selector = Some(parse_selector(cursor)?),
            StateWord::Limit => limit::parse(cursor, &mut self.limits)?,
            StateWord::Encap => self.parts.push(StateClause::Encap(parse_encap(cursor)?)),
            StateWord::CareOf if self.care_of().is_some() => {
                return Err(cursor.duplicate("coa", word));
            }
            StateWord::CareOf => {
                self.parts.push(StateClause::CareOf(address::parse_care_of(cursor)?));
            }
            StateWord::Context if self.has_context() => return Err(cursor.duplicate("ctx", word)),
            StateWord::Context => {
                self.parts.push(StateClause::Context(cursor.value()?.text().to_owned()));
            }
            StateWord::Offload => self.offload = Some(parse_offload(cursor)?),
            StateWord::OutputMark => self.output_mark = mark::parse_output(cursor)?,
            StateWord::SetMark => self.output_mark = mark::parse_set(cursor)?,
            StateWord::IfId => self.if_id = Some(IfId(cursor.number()?)),
            StateWord::TfcPadding => self.tfc_padding = cursor.number()?,
            StateWord::Direction => self.direction = Some(cursor.choice(&STATE_DIRECTIONS)?),
            StateWord::Pcpu => self.pcpu = parse_pcpu(cursor)?,
            StateWord::NatKeepalive => {
                self.nat_keepalive = KeepaliveInterval::from_secs(cursor.number()?);
            }
            StateWord::MappingAge => self.mapping_age = NonZeroU32::new(cursor.number()?),
            StateWord::Algorithm(kind) => {
                let algorithm = algorithm::parse(kind, word, &self.parts, cursor)?;
                self.parts.push(StateClause::Algorithm(algorithm));
            }
        }
        Ok(())
    }

    /// What the words say together.
    fn finish(
        self,
        preferred: Option<Family>,
        cursor: &Cursor<'_, '_>,
    ) -> Result<StateArgs, SyntaxError> {
        let esn = self.flags.contains(SaFlags::ESN);
        if esn && self.replay.window == 0 && self.direction != Some(Direction::Out) {
            return Err(cursor.refuse("esn flag set without replay-window"));
        }
        let FullId { source, id } =
            self.id.ok_or_else(|| cursor.refuse(NO_ID))?.full(cursor, preferred)?;
        let mode = checked_mode(self.mode, id.protocol).map_err(|rule| cursor.refuse(rule))?;
        check_care_of(self.care_of(), id.protocol).map_err(|rule| cursor.refuse(rule))?;
        algorithm::check(&self.parts, id.protocol).map_err(|rule| cursor.refuse(rule))?;
        self.check_mapping_age().map_err(|rule| cursor.refuse(rule))?;
        Ok(StateArgs {
            id,
            source,
            mode,
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            mark: self.mark,
            output_mark: self.output_mark,
            if_id: self.if_id,
            replay: self.replay,
            flags: self.flags,
            extra_flags: self.extra_flags,
            selector: self.selector,
            limits: self.limits,
            parts: self.parts,
            offload: self.offload,
            tfc_padding: self.tfc_padding,
            direction: self.direction,
            pcpu: self.pcpu,
            nat_keepalive: self.nat_keepalive,
            mapping_age: self.mapping_age,
            end: cursor.last_place(),
        })
    }

    /// As `net/xfrm/xfrm_user.c: verify_mtimer_thresh`.
    fn check_mapping_age(&self) -> Result<(), &'static str> {
        let is_encap = |part: &StateClause| matches!(part, StateClause::Encap(_));
        match self.mapping_age {
            Some(_) if !self.parts.iter().any(is_encap) => {
                Err("\"mtimer-thresh\" is only for states with \"encap\"")
            }
            Some(_) if self.direction == Some(Direction::Out) => {
                Err("\"mtimer-thresh\" is not for states with \"dir out\"")
            }
            Some(_) | None => Ok(()),
        }
    }

    fn care_of(&self) -> Option<IpAddr> {
        self.parts.iter().find_map(|part| match part {
            StateClause::CareOf(address) => Some(*address),
            StateClause::Encap(_) | StateClause::Context(_) | StateClause::Algorithm(_) => None,
        })
    }

    fn has_context(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, StateClause::Context(_)))
    }
}

fn checked_mode(mode: Option<Mode>, protocol: SaProtocol) -> Result<Mode, String> {
    let name = protocol::ipsec_name(protocol);
    let given = mode.unwrap_or(Mode::Transport);
    let fits = match protocol {
        SaProtocol::Esp => {
            matches!(given, Mode::Transport | Mode::Tunnel | Mode::Beet | Mode::Iptfs)
        }
        SaProtocol::Ah | SaProtocol::Comp => matches!(given, Mode::Transport | Mode::Tunnel),
        SaProtocol::Route2 | SaProtocol::Hao if mode.is_none() => {
            return Err(format!("\"mode\" is required with XFRM-PROTO value \"{name}\""));
        }
        SaProtocol::Route2 | SaProtocol::Hao => {
            matches!(given, Mode::RouteOptimization | Mode::InTrigger)
        }
        SaProtocol::Any => true,
    };
    if fits {
        Ok(given)
    } else {
        Err(format!("MODE value is invalid with XFRM-PROTO value \"{name}\""))
    }
}

fn check_care_of(care_of: Option<IpAddr>, protocol: SaProtocol) -> Result<(), String> {
    let mobile = matches!(protocol, SaProtocol::Route2 | SaProtocol::Hao);
    let wrong = match (mobile, care_of.is_some()) {
        (true, false) => "required",
        (false, true) => "invalid",
        (true, true) | (false, false) => return Ok(()),
    };
    let name = protocol::ipsec_name(protocol);
    Err(format!("\"coa\" is {wrong} with XFRM-PROTO value \"{name}\""))
}

/// Above 32 `ip` sends it as a bitmap of its own (`XFRMA_REPLAY_ESN_VAL`), with ESN or without.
fn parse_window(cursor: &mut Cursor<'_, '_>) -> Result<u32, SyntaxError> {
    let window = cursor.number()?;
    if window > LONGEST_WINDOW {
        return Err(cursor.refuse(format!(
            "replay-window ({window}) > XFRMA_REPLAY_ESN_MAX ({LONGEST_WINDOW})"
        )));
    }
    Ok(window)
}

/// Behind `flag`: names, or the bits as hexadecimal number.
pub(super) fn parse_flags(cursor: &mut Cursor<'_, '_>) -> Result<SaFlags, SyntaxError> {
    flags::parse(cursor, &STATE_FLAGS)
}

fn parse_extra_flags(cursor: &mut Cursor<'_, '_>) -> Result<SaExtraFlags, SyntaxError> {
    flags::parse(cursor, &STATE_EXTRA_FLAGS)
}

/// Behind `sel`: of any family, also another than the state's.
fn parse_selector(cursor: &mut Cursor<'_, '_>) -> Result<SelectorFilter, SyntaxError> {
    if !selector::begins(cursor) {
        return Err(selector::expected(cursor));
    }
    cursor.family = None;
    let selector = selector::parse(cursor)?;
    cursor.family = selector.family;
    Ok(selector)
}

/// Behind `encap`: `TYPE SPORT DPORT OADDR`.
fn parse_encap(cursor: &mut Cursor<'_, '_>) -> Result<EncapArgs, SyntaxError> {
    Ok(EncapArgs {
        kind: cursor.choice(&ENCAPS)?,
        source_port: cursor.number_operand("encap", "SPORT")?,
        destination_port: cursor.number_operand("encap", "DPORT")?,
        original_address: address::parse_address(cursor, ("encap", "OADDR"))?,
    })
}

/// Behind `offload`: `[crypto|packet] dev DEV dir DIR`.
fn parse_offload(cursor: &mut Cursor<'_, '_>) -> Result<Offload, SyntaxError> {
    let kind = cursor.keyword(&OFFLOADS);
    if kind.is_none() && cursor.peek().is_none_or(|word| word.text() != "dev") {
        return Err(cursor.unknown(&words_of!(OFFLOADS, DEVICE)));
    }
    cursor.exactly(&DEVICE)?;
    let device = cursor.value()?.text().to_owned();
    cursor.exactly(&DIRECTION)?;
    let direction = cursor.choice(&STATE_DIRECTIONS)?;
    Ok(Offload { kind: kind.unwrap_or(OffloadKind::Crypto), device, direction })
}
