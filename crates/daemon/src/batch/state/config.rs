//! `state { add | update }`: the whole of a state.

use std::net::IpAddr;

use uxfrm_engine::{
    Direction, Family, IfId, Limits, Mark, Mode, Offload, OffloadKind, ReplayConfig, Reqid,
    SaConfig, SaExtraFlags, SaFlags, SaProtocol, Selector, UdpEncap, UdpEncapKind,
};

use super::{NO_ID, TWO_IDS, parse_pcpu};
use crate::batch::{
    address,
    algorithm::Algorithms,
    cursor::{Cursor, Fault},
    flags,
    id::{self, FullId, Id},
    keyword::{
        DEVICE, DIRECTION, ENCAPS, ID, MODES, OFFLOADS, STATE, STATE_DIRECTIONS, STATE_EXTRA_FLAGS,
        STATE_FLAGS, StateWord, words_of,
    },
    limit, mark, protocol,
    selector::{self, SelectorFilter},
    words::Word,
};

/// `XFRMA_REPLAY_ESN_MAX`, in packets.
const LONGEST_WINDOW: u32 = 4096;

/// The words of a state so far.
#[derive(Default)]
struct StateWords<'l, 'a> {
    id: Option<Id>,
    mode: Option<Mode>,
    reqid: Reqid,
    acquire_seq: u32,
    mark: Mark,
    output_mark: Mark,
    if_id: IfId,
    replay: ReplayWords,
    flags: SaFlags,
    extra_flags: SaExtraFlags,
    selector: Option<SelectorFilter>,
    limits: Limits,
    encap: Option<EncapWords>,
    care_of: Option<IpAddr>,
    has_context: bool,
    offload: Option<Offload>,
    tfc_padding: u32,
    direction: Option<Direction>,
    pcpu: Option<u32>,
    algorithms: Algorithms<'l, 'a>,
}

/// Lower and upper halves apart, as the line has them.
#[derive(Default)]
struct ReplayWords {
    window: u32,
    received: [u32; 2],
    sent: [u32; 2],
}

/// The original address may be `any`, of the state's family.
#[derive(Clone, Copy)]
struct EncapWords {
    kind: UdpEncapKind,
    source_port: u16,
    destination_port: u16,
    original_address: Option<IpAddr>,
}

/// Behind `add` or `update` (`ip/xfrm_state.c: xfrm_state_modify`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Box<SaConfig>, Fault> {
    let mut state = StateWords::default();
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
    state.config(cursor).map(Box::new)
}

impl<'l, 'a> StateWords<'l, 'a> {
    /// The value of `keyword`, which stands in `word`.
    fn parse(
        &mut self,
        keyword: StateWord,
        word: &Word<'_>,
        cursor: &mut Cursor<'l, 'a>,
    ) -> Result<(), Fault> {
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
            StateWord::Encap => self.encap = Some(parse_encap(cursor)?),
            StateWord::CareOf if self.care_of.is_some() => {
                return Err(cursor.duplicate("coa", word));
            }
            StateWord::CareOf => self.care_of = Some(address::parse_care_of(cursor)?),
            StateWord::Context if self.has_context => return Err(cursor.duplicate("ctx", word)),
            // Taken and not kept, as by a kernel without a security module.
            StateWord::Context => {
                cursor.value()?;
                self.has_context = true;
            }
            StateWord::Offload => self.offload = Some(parse_offload(cursor)?),
            StateWord::OutputMark => self.output_mark = mark::parse_output(cursor)?,
            StateWord::IfId => self.if_id = IfId(cursor.number()?),
            StateWord::TfcPadding => self.tfc_padding = cursor.number()?,
            StateWord::Direction => self.direction = Some(cursor.choice(&STATE_DIRECTIONS)?),
            StateWord::Pcpu => self.pcpu = parse_pcpu(cursor)?,
            StateWord::Algorithm(kind) => self.algorithms.parse(kind, word, cursor)?,
        }
        Ok(())
    }

    /// What the words say together.
    fn config(self, cursor: &Cursor<'_, '_>) -> Result<SaConfig, Fault> {
        let esn = self.flags.contains(SaFlags::ESN);
        if esn && self.replay.window == 0 && self.direction != Some(Direction::Out) {
            return Err(cursor.refuse("esn flag set without replay-window"));
        }
        let FullId { source, id } =
            self.id.ok_or_else(|| cursor.refuse(NO_ID))?.full(cursor, cursor.family)?;
        let mode = checked_mode(self.mode, id.protocol).map_err(|rule| cursor.refuse(rule))?;
        check_care_of(self.care_of, id.protocol).map_err(|rule| cursor.refuse(rule))?;
        let family = Family::of(id.destination);
        Ok(SaConfig {
            id,
            source,
            mode,
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            transform: self.algorithms.transform(id.protocol, cursor)?,
            selector: selector_of(self.selector, self.flags, family),
            mark: self.mark,
            output_mark: self.output_mark,
            if_id: self.if_id,
            replay: self.replay.config(esn),
            limits: self.limits,
            flags: self.flags,
            extra_flags: self.extra_flags,
            encap: self.encap.map(|encap| encap.config(family)),
            tfc_padding: self.tfc_padding,
            direction: self.direction,
            pcpu: self.pcpu,
            care_of: self.care_of,
            offload: self.offload,
        })
    }
}

impl ReplayWords {
    /// Upper halves count with ESN only.
    fn config(&self, esn: bool) -> ReplayConfig {
        let joined = |[lower, upper]: [u32; 2]| {
            u64::from(lower) | if esn { u64::from(upper) << 32 } else { 0 }
        };
        ReplayConfig {
            window: self.window,
            sent: joined(self.sent),
            received: joined(self.received),
        }
    }
}

impl EncapWords {
    fn config(self, family: Family) -> UdpEncap {
        UdpEncap {
            kind: self.kind,
            source_port: self.source_port,
            destination_port: self.destination_port,
            original_address: self.original_address.unwrap_or_else(|| family.unspecified()),
        }
    }
}

/// What the kernel makes of the selector (`net/xfrm/xfrm_user.c: copy_from_user_state`): one without a family gets the
/// state's, unless `flag af-unspec` says that it may carry either.
fn selector_of(words: Option<SelectorFilter>, flags: SaFlags, family: Family) -> Option<Selector> {
    let words = words.unwrap_or_default();
    if words.family.is_none() && flags.contains(SaFlags::AF_UNSPEC) {
        return None;
    }
    Some(words.selector(family))
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
fn parse_window(cursor: &mut Cursor<'_, '_>) -> Result<u32, Fault> {
    let window = cursor.number()?;
    if window > LONGEST_WINDOW {
        return Err(cursor.refuse(format!(
            "replay-window ({window}) > XFRMA_REPLAY_ESN_MAX ({LONGEST_WINDOW})"
        )));
    }
    Ok(window)
}

/// Behind `flag`: names, or the bits as hexadecimal number.
pub(super) fn parse_flags(cursor: &mut Cursor<'_, '_>) -> Result<SaFlags, Fault> {
    flags::parse(cursor, &STATE_FLAGS)
}

fn parse_extra_flags(cursor: &mut Cursor<'_, '_>) -> Result<SaExtraFlags, Fault> {
    flags::parse(cursor, &STATE_EXTRA_FLAGS)
}

/// Behind `sel`: of any family, whatever that of the state.
fn parse_selector(cursor: &mut Cursor<'_, '_>) -> Result<SelectorFilter, Fault> {
    if !selector::begins(cursor) {
        return Err(selector::expected(cursor));
    }
    cursor.family = None;
    let selector = selector::parse(cursor)?;
    cursor.family = selector.family;
    Ok(selector)
}

/// Behind `encap`: `TYPE SPORT DPORT OADDR`.
fn parse_encap(cursor: &mut Cursor<'_, '_>) -> Result<EncapWords, Fault> {
    Ok(EncapWords {
        kind: cursor.choice(&ENCAPS)?,
        source_port: cursor.number_operand("encap", "SPORT")?,
        destination_port: cursor.number_operand("encap", "DPORT")?,
        original_address: address::parse_address(cursor, ("encap", "OADDR"))?,
    })
}

/// Behind `offload`: `[crypto|packet] dev DEV dir DIR`.
fn parse_offload(cursor: &mut Cursor<'_, '_>) -> Result<Offload, Fault> {
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
