//! Larval states: an SPI reserved (ALLOCSPI) or a state asked for (ACQUIRE), until a key manager makes it real or time is up
//! (`net/xfrm/xfrm_state.c: __find_acq_core`, `xfrm_alloc_spi`).
//!
//! They carry no packets, so they live here and not in the databases that workers read.

use std::{net::IpAddr, time::Duration};

use uxfrm_engine::{
    Direction, Family, IfId, Mark, Moment, Prefix, Reqid, SaConfig, SaId, Selector, Spi, Template,
};
use zerocopy::FromZeros as _;

use super::{Call, Server};
use crate::{
    Datagram, MessageType, Refusal,
    address::{self, address, raw},
    attribute::AttributeType,
    decode::common,
    encode::{
        common::{self as encode, Calendar},
        state::put_direction,
    },
    layout::{RawId, RawReplay, RawSa, RawSpiRequest},
    refusal::number,
};

/// A state that is not there yet.
#[derive(Clone, Debug)]
pub(crate) struct Larval {
    /// SPI 0 when none was asked for.
    pub(crate) id: SaId,
    pub(crate) source: IpAddr,
    pub(crate) mode: RawMode,
    pub(crate) reqid: Reqid,
    pub(crate) mark: Mark,
    pub(crate) if_id: IfId,
    pub(crate) direction: Option<Direction>,
    pub(crate) pcpu: Option<u32>,
    /// The number of its acquire; 0 for none.
    pub(crate) seq: u32,
    /// The packet that it is for; `None` from ALLOCSPI, which shows its addresses without a family.
    pub(crate) selector: Option<Selector>,
    pub(crate) added: Moment,
    lifetime: u32,
}

/// A mode by its number: the kernel reserves SPIs for modes that there are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawMode(pub(crate) u8);

/// All larval states, the youngest last.
#[derive(Debug)]
pub(super) struct Larvals {
    all: Vec<Larval>,
    lifetime: u32,
    random: u64,
    acquires: u32,
}

/// What [`Larvals::seek`] compares.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wish {
    id: SaId,
    source: IpAddr,
    mode: RawMode,
    reqid: Reqid,
    mark: Mark,
    if_id: IfId,
    pcpu: Option<u32>,
}

/// How many random SPIs are tried before a range is walked through.
const RANDOM_TRIES: u32 = 64;
const MOST_WALKED: u32 = 0x1_0000;

impl Larvals {
    pub(super) fn new(seed: u64, lifetime: u32) -> Self {
        Self { all: Vec::new(), lifetime, random: seed, acquires: 0 }
    }

    pub(super) fn set_lifetime(&mut self, seconds: u32) {
        self.lifetime = seconds;
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Larval> {
        self.all.iter()
    }

    /// The one with an SPI, as a look-up of states would find it.
    pub(super) fn find(&self, id: SaId, mark: Mark) -> Option<&Larval> {
        let mark = mark.value & mark.mask;
        self.all.iter().rev().find(|larval| larval.id == id && larval.mark.fits(mark))
    }

    /// Takes it out.
    pub(super) fn take(&mut self, id: SaId, mark: Mark) -> Option<Larval> {
        let mark = mark.value & mark.mask;
        let place = self.all.iter().rposition(|larval| larval.id == id && larval.mark.fits(mark));
        place.map(|place| self.all.remove(place))
    }

    /// Takes all of a protocol number out; says how many went.
    pub(super) fn flush(&mut self, protocol: u8) -> usize {
        let before = self.all.len();
        self.all.retain(|larval| !common::protocol_is_meant(larval.id.protocol, protocol));
        before - self.all.len()
    }

    /// A real state has come: what was asked for with its number, else what it answers without an SPI, goes.
    pub(super) fn answered_by(&mut self, config: &SaConfig) {
        let same_way = |larval: &Larval| {
            (larval.id.destination, larval.id.protocol)
                == (config.id.destination, config.id.protocol)
        };
        let asked = |larval: &Larval| {
            config.acquire_seq != 0 && larval.seq == config.acquire_seq && same_way(larval)
        };
        let meant = |larval: &Larval| {
            larval.id.spi.0 == 0
                && same_way(larval)
                && larval.source == config.source
                && larval.mode.0 == common::mode_number(config.mode)
                && larval.mark.fits(config.mark.value & config.mark.mask)
                && larval.reqid == config.reqid
        };
        let place = self.all.iter().position(asked).or_else(|| self.all.iter().position(meant));
        if let Some(place) = place {
            self.all.remove(place);
        }
    }

    /// A packet asks for a state: the number of the acquire, or `None` when the same was asked already.
    pub(super) fn acquire(&mut self, mut larval: Larval, now: Moment) -> Option<Larval> {
        let same = |old: &Larval| {
            old.wish() == larval.wish() && old.selector == larval.selector && old.seq != 0
        };
        if self.all.iter().any(same) {
            return None;
        }
        self.acquires = self.acquires.checked_add(1).unwrap_or(1);
        larval.seq = self.acquires;
        larval.added = now;
        larval.lifetime = self.lifetime;
        self.all.push(larval.clone());
        Some(larval)
    }

    pub(super) fn first_expiry(&self) -> Option<Moment> {
        self.all.iter().map(Larval::expires).min()
    }

    pub(super) fn take_expired(&mut self, now: Moment) -> Option<Larval> {
        let place = self.all.iter().position(|larval| larval.expires() <= now)?;
        Some(self.all.remove(place))
    }

    /// The place of the one that ALLOCSPI means, made if it is not there: by number, else one without SPI that wishes the same.
    fn seek(&mut self, wish: Wish, seq: u32, now: Moment) -> usize {
        let mark = wish.mark.value & wish.mark.mask;
        let by_seq = |larval: &Larval| {
            seq != 0
                && larval.seq == seq
                && larval.id.destination == wish.id.destination
                && larval.mark.fits(mark)
        };
        let by_wish = |larval: &Larval| {
            // As in the kernel, which interface it is for does not count.
            let same = Wish { mark: wish.mark, if_id: wish.if_id, ..larval.wish() } == wish;
            larval.id.spi.0 == 0 && same && larval.mark.fits(mark)
        };
        let found = self.all.iter().rposition(by_seq);
        found.or_else(|| self.all.iter().rposition(by_wish)).unwrap_or_else(|| {
            self.all.push(Larval::new(wish, now, self.lifetime));
            self.all.len() - 1
        })
    }

    /// A number from `min..=max`. SplitMix64: SPIs need not be secret, only spread.
    fn random(&mut self, min: u32, max: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let range = u64::from(max - min) + 1;
        min + u32::try_from((mixed ^ (mixed >> 31)) % range).unwrap_or(0)
    }
}

impl Larval {
    fn new(wish: Wish, added: Moment, lifetime: u32) -> Self {
        Self {
            id: wish.id,
            source: wish.source,
            mode: wish.mode,
            reqid: wish.reqid,
            mark: wish.mark,
            if_id: wish.if_id,
            direction: None,
            pcpu: wish.pcpu,
            seq: 0,
            selector: None,
            added,
            lifetime,
        }
    }

    /// One that a packet asks for; number and lifetime are given by [`Larvals::acquire`].
    pub(super) fn wanted(
        template: &Template,
        (source, destination): (IpAddr, IpAddr),
        (mark, if_id): (Mark, IfId),
        selector: Selector,
    ) -> Self {
        let id = SaId { destination, spi: template.spi, protocol: template.protocol };
        let mode = RawMode(common::mode_number(template.mode));
        let wish = Wish { id, source, mode, reqid: template.reqid, mark, if_id, pcpu: None };
        let mut larval = Self::new(wish, Moment::default(), 0);
        larval.selector = Some(selector);
        larval
    }

    fn wish(&self) -> Wish {
        Wish {
            id: SaId { spi: Spi(0), ..self.id },
            source: self.source,
            mode: self.mode,
            reqid: self.reqid,
            mark: self.mark,
            if_id: self.if_id,
            pcpu: self.pcpu,
        }
    }

    fn expires(&self) -> Moment {
        self.added.plus(Duration::from_secs(self.lifetime.into()))
    }

    /// `struct xfrm_usersa_info`.
    pub(crate) fn info(&self, calendar: Calendar) -> RawSa {
        let mut info = RawSa::new_zeroed();
        let family = Family::of(self.id.destination);
        info.selector = self.selector.as_ref().map_or_else(
            || {
                let mut selector = encode::selector(&Selector {
                    source: Prefix::host(self.source),
                    destination: Prefix::host(self.id.destination),
                    ..Selector::any(family)
                });
                selector.family = 0;
                selector
            },
            encode::selector,
        );
        info.id = self.raw_id();
        info.source = raw(self.source);
        let limits = uxfrm_engine::Limits::default();
        info.limits = encode::limits(&limits);
        (info.limits.soft_added, info.limits.soft_used, info.limits.hard_used) = (0, 0, 0);
        info.limits.hard_added = self.lifetime.into();
        info.usage.added = calendar.seconds(self.added);
        info.seq = self.seq;
        info.reqid = self.reqid.0;
        info.family = address::family_number(family);
        info.mode = self.mode.0;
        info
    }

    pub(crate) fn raw_id(&self) -> RawId {
        RawId {
            destination: raw(self.id.destination),
            spi: self.id.spi.0.into(),
            protocol: common::protocol_number(self.id.protocol),
            pad: [0; 3],
        }
    }

    pub(crate) fn attributes(&self, out: &mut Datagram) {
        encode::put_mark(out, self.mark);
        out.attribute(AttributeType::ReplayVal, &RawReplay::new_zeroed());
        encode::put_if_id(out, self.if_id);
        put_direction(out, self.direction);
        if let Some(pcpu) = self.pcpu {
            out.attribute(AttributeType::SaPcpu, &pcpu);
        }
    }
}

impl Server {
    /// ALLOCSPI: answers with the larval state.
    pub(super) fn allocate_spi(&mut self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let request: RawSpiRequest = call.head()?;
        check_range(&request)?;
        self.check_pcpu(call, number::EINVAL)?;
        let wish = wish(&request, call)?;
        let place = self.larvals.seek(wish, request.sa.seq, call.now);
        self.larvals.all[place].direction =
            common::sa_direction(&call.attributes).or(self.larvals.all[place].direction);
        if self.larvals.all[place].id.spi.0 == 0 {
            let spi = self.free_spi(wish.id, (request.min, request.max), call)?;
            self.larvals.all[place].id.spi = spi;
        }
        let larval = &self.larvals.all[place];
        let mut datagram = call.answer(MessageType::NewSa);
        datagram.put(&larval.info(self.calendar));
        larval.attributes(&mut datagram);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// At random; small ranges to the end.
    fn free_spi(
        &mut self,
        id: SaId,
        (min, max): (u32, u32),
        call: &Call<'_>,
    ) -> Result<Spi, Refusal> {
        let snapshot = call.database.snapshot();
        let is_free = |larvals: &Self, spi: u32| {
            let id = SaId { spi: Spi(spi), ..id };
            spi != 0
                && snapshot.sad.with_id(id).next().is_none()
                && !larvals
                    .larvals
                    .iter()
                    .any(|larval| larval.id.spi == id.spi && larval.id.protocol == id.protocol)
        };
        let tried = (0..RANDOM_TRIES).find_map(|_| {
            let spi = self.larvals.random(min, max);
            is_free(self, spi).then_some(spi)
        });
        let walked = || {
            let last = max.min(min.saturating_add(MOST_WALKED));
            (min..=last).find(|spi| is_free(self, *spi))
        };
        tried.or_else(walked).map(Spi).ok_or(
            const { Refusal::new(number::ENOENT, "No SPI available in the requested range") },
        )
    }
}

/// `verify_spi_info`.
fn check_range(request: &RawSpiRequest) -> Result<(), Refusal> {
    const ESP: u8 = 50;
    const AH: u8 = 51;
    const COMP: u8 = 108;
    match request.sa.id.protocol {
        ESP | AH => {}
        COMP if request.max >= 0x10000 => {
            return Err(Refusal::invalid("IPCOMP SPI must be <= 65535"));
        }
        COMP => {}
        _ => return Err(Refusal::invalid("Invalid protocol, must be one of AH, ESP, IPCOMP")),
    }
    if request.min > request.max {
        return Err(Refusal::invalid("Invalid SPI range: min > max"));
    }
    Ok(())
}

fn wish(request: &RawSpiRequest, call: &Call<'_>) -> Result<Wish, Refusal> {
    let sa = &request.sa;
    // The kernel reserves an SPI in no family as well, for nobody to find.
    let family =
        address::family(sa.family).ok_or_else(|| Refusal::from(uxfrm_engine::Error::Family))?;
    let protocol = common::protocol(sa.id.protocol)
        .ok_or(const { Refusal::invalid("Invalid protocol, must be one of AH, ESP, IPCOMP") })?;
    Ok(Wish {
        id: SaId { destination: address(family, sa.id.destination), spi: Spi(0), protocol },
        source: address(family, sa.source),
        mode: RawMode(sa.mode),
        reqid: Reqid(sa.reqid),
        mark: common::mark(&call.attributes),
        if_id: common::if_id(&call.attributes),
        pcpu: call.attributes.read(AttributeType::SaPcpu),
    })
}
