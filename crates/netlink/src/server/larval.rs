//! Larval states: an SPI reserved (ALLOCSPI) or a state asked for (ACQUIRE), until a key manager
//! completes it or it expires (`net/xfrm/xfrm_state.c: __find_acq_core`, `xfrm_alloc_spi`).
//!
//! They carry no packets, so they live here and not in the databases that workers read.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use uxfrm_engine::{
    Cpu, DeviceId, Direction, Family, FlowKey, Handle, IfId, Mark, Moment, OffloadKind, PortMask,
    Prefix, Reqid, SaId, SaRequest, Selector, Spi,
};
use zerocopy::FromZeros as _;

use super::{Call, Server, state::no_such_state};
use crate::{
    Attributes, MessageType, NetlinkDatagram, NetlinkError,
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

/// A larval state.
#[derive(Clone, Debug)]
pub(crate) struct Larval {
    /// SPI 0 if none is reserved.
    pub(crate) id: SaId,
    pub(crate) source: IpAddr,
    pub(crate) mode: RawMode,
    pub(crate) reqid: Reqid,
    pub(crate) mark: Mark,
    pub(crate) if_id: IfId,
    pub(crate) direction: Option<Direction>,
    pub(crate) pcpu: Option<Cpu>,
    /// Sequence number of its acquire; 0 for none.
    pub(crate) seq: u32,
    /// The packet that it is for; `None` from ALLOCSPI, which shows its addresses without a family.
    pub(crate) selector: Option<Selector>,
    /// The device that will hold the state, and its handle of this one
    /// (`XFRM_DEV_OFFLOAD_FLAG_ACQ`).
    pub(crate) device: Option<(DeviceId, Handle)>,
    pub(crate) added: Moment,
    lifetime: u32,
}

/// A mode's number: the kernel reserves SPIs for unknown modes too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawMode(pub(crate) u8);

/// The fields that identify a larval state without SPI.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AcqTemplate {
    pub(super) id: SaId,
    pub(super) source: IpAddr,
    pub(super) mode: RawMode,
    pub(super) reqid: Reqid,
    pub(super) mark: Mark,
    pub(super) if_id: IfId,
    pub(super) pcpu: Option<Cpu>,
}

/// Random SPIs tried before a range is searched in order.
const RANDOM_TRIES: u32 = 64;
const MOST_WALKED: u32 = 0x1_0000;

impl Larval {
    pub(super) fn new(template: AcqTemplate, added: Moment, lifetime: u32) -> Self {
        Self {
            id: template.id,
            source: template.source,
            mode: template.mode,
            reqid: template.reqid,
            mark: template.mark,
            if_id: template.if_id,
            direction: None,
            pcpu: template.pcpu,
            seq: 0,
            selector: None,
            device: None,
            added,
            lifetime,
        }
    }

    /// For a packet's acquire (`xfrm_init_tempstate`).
    pub(super) fn asked(
        wanted: &SaRequest,
        flow: &FlowKey,
        seq: u32,
        now: Moment,
        lifetime: u32,
    ) -> Self {
        let template = AcqTemplate {
            id: SaId {
                destination: wanted.destination,
                spi: wanted.spi,
                protocol: wanted.protocol,
            },
            source: wanted.source,
            mode: RawMode(common::mode_number(wanted.mode)),
            reqid: wanted.reqid,
            mark: wanted.mark,
            if_id: wanted.if_id,
            pcpu: wanted.pcpu,
        };
        let direction = Some(Direction::Out);
        Self { seq, selector: Some(only(flow)), direction, ..Self::new(template, now, lifetime) }
    }

    /// Decodes [`Larval::info`] and [`Larval::attributes`]; `None` for invalid values.
    pub(super) fn restored(
        info: &RawSa,
        attributes: &Attributes<'_>,
        calendar: Calendar,
    ) -> Option<Self> {
        let family = address::family(info.family)?;
        let template = AcqTemplate {
            id: SaId {
                destination: address(family, info.id.destination),
                spi: Spi(info.id.spi.get()),
                protocol: common::protocol(info.id.protocol)?,
            },
            source: address(family, info.source),
            mode: RawMode(info.mode),
            reqid: Reqid(info.reqid),
            mark: common::mark(attributes),
            if_id: common::if_id(attributes),
            pcpu: attributes.read(AttributeType::SaPcpu).map(Cpu),
        };
        let lifetime = u32::try_from(info.limits.hard_added).ok()?;
        let selector = address::family(info.selector.family)
            .and_then(|family| common::selector(family, &info.selector));
        Some(Self {
            direction: common::sa_direction(attributes),
            seq: info.seq,
            selector,
            ..Self::new(template, calendar.moment(info.usage.added), lifetime)
        })
    }

    /// A larval state for encoding a state of which only the id is known.
    pub(super) fn named(id: SaId, mark: Mark) -> Self {
        let source = match id.destination {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let (mode, reqid, if_id) = (RawMode(0), Reqid(0), IfId(0));
        let template = AcqTemplate { id, source, mode, reqid, mark, if_id, pcpu: None };
        Self::new(template, Moment(0), 0)
    }

    /// Whether this state serves a packet's acquire: same path, no SPI; its selector does not count
    /// (`xfrm_state_find`, `xfrm_state_look_at`).
    pub(super) fn serves(&self, wanted: &SaRequest) -> bool {
        let any = |address: IpAddr| address.is_unspecified();
        (self.source == wanted.source || any(self.source) || any(wanted.source))
            && self.mode.0 == common::mode_number(wanted.mode)
            && self.reqid == wanted.reqid
            && self.if_id == wanted.if_id
            && self.mark.fits(wanted.mark.value)
            && (wanted.pcpu.is_none() || self.pcpu == wanted.pcpu)
            && wanted.spi == Spi(0)
    }

    pub(super) fn template(&self) -> AcqTemplate {
        AcqTemplate {
            id: SaId { spi: Spi(0), ..self.id },
            source: self.source,
            mode: self.mode,
            reqid: self.reqid,
            mark: self.mark,
            if_id: self.if_id,
            pcpu: self.pcpu,
        }
    }

    pub(super) fn expires(&self) -> Moment {
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
        let limits = uxfrm_engine::LifetimeLimits::default();
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
            protocol: self.id.protocol.number(),
            pad: [0; 3],
        }
    }

    pub(crate) fn attributes(&self, out: &mut NetlinkDatagram) {
        encode::put_mark(out, self.mark);
        out.attribute(AttributeType::ReplayVal, &RawReplay::new_zeroed());
        if let Some((device, _)) = self.device {
            encode::put_offload(out, device, OffloadKind::Packet, Direction::Out);
        }
        encode::put_if_id(out, self.if_id);
        put_direction(out, self.direction);
        self.put_cpu(out);
    }

    pub(crate) fn put_cpu(&self, out: &mut NetlinkDatagram) {
        if let Some(pcpu) = self.pcpu {
            out.attribute(AttributeType::SaPcpu, &pcpu.0);
        }
    }
}

impl Server {
    /// ALLOCSPI: answers with the larval state.
    pub(super) fn allocate_spi(&mut self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let request: RawSpiRequest = call.head()?;
        check_range(&request)?;
        self.check_pcpu(call, number::EINVAL)?;
        let template = template(&request, call)?;
        let serial = self.larvals.find_or_insert(template, request.sa.seq, call.now);
        if self.larvals.at(serial).is_some_and(|larval| larval.id.spi == Spi(0)) {
            let spi = self.free_spi(template.id, (request.min, request.max), call)?;
            self.larvals.change(serial, |larval| larval.id.spi = spi);
        }
        if let Some(direction) = common::sa_direction(&call.attributes) {
            self.larvals.change(serial, |larval| larval.direction = Some(direction));
        }
        let Some(larval) = self.larvals.at(serial) else { return Err(no_such_state()) };
        let mut datagram = call.answer(MessageType::NewSa);
        datagram.put(&larval.info(self.calendar));
        larval.attributes(&mut datagram);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// A free SPI, at random; small ranges are searched in order.
    fn free_spi(
        &mut self,
        id: SaId,
        (min, max): (u32, u32),
        call: &Call<'_>,
    ) -> Result<Spi, NetlinkError> {
        let snapshot = call.database.current();
        let is_free = |larvals: &Self, spi: u32| {
            let id = SaId { spi: Spi(spi), ..id };
            spi != 0
                && snapshot.sad.with_id(id).next().is_none()
                && !larvals.larvals.has_spi(id.spi, id.protocol)
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
            const { NetlinkError::new(number::ENOENT, "No SPI available in the requested range") },
        )
    }
}

/// Selector of one flow (`__xfrm4_init_tempsel`, `__xfrm6_init_tempsel`).
fn only(flow: &FlowKey) -> Selector {
    Selector {
        source: Prefix::host(flow.source),
        destination: Prefix::host(flow.destination),
        protocol: flow.protocol,
        source_port: PortMask::exactly(flow.source_port),
        destination_port: PortMask::exactly(flow.destination_port),
        ifindex: flow.ifindex,
        user: 0,
    }
}

/// `verify_spi_info`.
fn check_range(request: &RawSpiRequest) -> Result<(), NetlinkError> {
    const ESP: u8 = 50;
    const AH: u8 = 51;
    const COMP: u8 = 108;
    match request.sa.id.protocol {
        ESP | AH => {}
        COMP if request.max >= 0x10000 => {
            return Err(NetlinkError::invalid("IPCOMP SPI must be <= 65535"));
        }
        COMP => {}
        _ => return Err(NetlinkError::invalid("Invalid protocol, must be one of AH, ESP, IPCOMP")),
    }
    if request.min > request.max {
        return Err(NetlinkError::invalid("Invalid SPI range: min > max"));
    }
    // A refused CPI makes a key manager go on without compression (RFC 7296 §2.22); a reserved one
    // would be followed by a state that cannot be added.
    if request.sa.id.protocol == COMP {
        return Err(NetlinkError::new(number::EPROTONOSUPPORT, "IPComp is not supported"));
    }
    Ok(())
}

fn template(request: &RawSpiRequest, call: &Call<'_>) -> Result<AcqTemplate, NetlinkError> {
    let sa = &request.sa;
    // The kernel reserves an SPI without a family too, which no look-up finds.
    let family = address::family(sa.family)
        .ok_or_else(|| NetlinkError::from(uxfrm_engine::Error::Family))?;
    let protocol = common::protocol(sa.id.protocol).ok_or(
        const { NetlinkError::invalid("Invalid protocol, must be one of AH, ESP, IPCOMP") },
    )?;
    Ok(AcqTemplate {
        id: SaId { destination: address(family, sa.id.destination), spi: Spi(0), protocol },
        source: address(family, sa.source),
        mode: RawMode(sa.mode),
        reqid: Reqid(sa.reqid),
        mark: common::mark(&call.attributes),
        if_id: common::if_id(&call.attributes),
        pcpu: call.attributes.read(AttributeType::SaPcpu).map(Cpu),
    })
}
