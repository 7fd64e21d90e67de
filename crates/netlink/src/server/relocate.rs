//! MIGRATE_STATE (Linux 7.2): new addresses for one state (`net/xfrm/xfrm_user.c:
//! xfrm_do_migrate_state`).
//!
//! Values that the request omits are kept. Workers see one of both states at any time, so traffic
//! need not be blocked meanwhile, as Linux advises for AES-GCM.

use std::{num::NonZeroU32, sync::Arc};

use uxfrm_engine::{
    Direction, Family, KeepaliveInterval, Sa, SaConfig, SaId, SaMove, Selector, SharedSaConfig,
    UdpEncap,
};

use super::{Call, Server, client::Groups, state::ReplyAttributes};
use crate::{
    AttributeType, MessageType, NetlinkDatagram, NetlinkError,
    address::{self, address},
    decode::{common, state as decode},
    encode::{common as encode, state as put},
    layout::{RawEncap, RawMark, RawSelector, RawStateMigration},
    refusal::number,
};

/// `XFRM_MIGRATE_STATE_CLEAR_OFFLOAD`, `_UPDATE_H2H_SEL`
const CLEAR_OFFLOAD: u32 = 1;
const UPDATE_SELECTOR: u32 = 2;

impl Server {
    pub(super) fn migrate_state(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let raw: RawStateMigration = call.head()?;
        let (family, selector) = words(&raw, call)?;
        let old = self.target(&raw, call)?;
        let config = old.to_config();
        let (source, destination) =
            (address(family, raw.new_source), address(family, raw.new_destination));
        let selector = match selector {
            NewSelector::Given(selector) => selector,
            NewSelector::FromAddresses => Some(selector_of_ends(&config, source, destination)?),
        };
        let encap = encap(call, &config, family)?;
        let (mapping_age, nat_keepalive) = timers(call, &config, encap)?;
        let attributes = &call.attributes;
        let to = SaMove {
            source,
            destination,
            reqid: uxfrm_engine::Reqid(raw.new_reqid),
            selector,
            mark: match attributes.has(AttributeType::Mark) {
                true => common::mark(attributes),
                false => config.mark,
            },
            output_mark: match attributes.has(AttributeType::SetMark) {
                true => common::output_mark(attributes),
                false => config.output_mark,
            },
            encap,
            nat_keepalive,
            mapping_age,
            offload: match attributes.has(AttributeType::OffloadDev) {
                true => decode::offload(attributes)?,
                false => config.offload.clone().filter(|_| raw.flags & CLEAR_OFFLOAD == 0),
            },
        };
        let moved = call
            .database
            .apply(call.now, |change| change.move_sas(vec![(old, to)]))
            .map_err(refusal)?;
        for new in &moved {
            self.notify_sa_migrated(&raw, new, call);
        }
        Ok(())
    }

    /// The state that is meant.
    fn target(&self, raw: &RawStateMigration, call: &Call<'_>) -> Result<Arc<Sa>, NetlinkError> {
        const NOT_FOUND: NetlinkError = NetlinkError::new(number::ESRCH, "Can not find state");
        let id: SaId = decode::id(&raw.id).ok_or(NOT_FOUND)?;
        let mark = uxfrm_engine::Mark { value: raw.old_mark.value, mask: raw.old_mark.mask };
        match self.find(id, mark, call) {
            Some(ReplyAttributes::Sa(sa)) => Ok(sa),
            // The kernel says it when it sets up the new one.
            Some(ReplyAttributes::Larval(_)) => {
                Err(NetlinkError::invalid("ESP: AEAD or CRYPT must be provided"))
            }
            None => Err(NOT_FOUND),
        }
    }

    /// `build_migrate_state`
    fn notify_sa_migrated(&self, raw: &RawStateMigration, new: &Sa, call: &mut Call<'_>) {
        let config = new.config();
        let encap = call.attributes.read::<RawEncap>(AttributeType::Encap);
        let encap = encap.or_else(|| config.encap.as_ref().map(put::raw_encap));
        let mark = call.attributes.read::<RawMark>(AttributeType::Mark);
        call.tell(&self.clients, Groups::MIGRATE, MessageType::MigrateState, |datagram| {
            let new_selector =
                config.selector.as_ref().map_or_else(encode::no_selector, encode::selector);
            datagram.put(&RawStateMigration { new_selector, ..*raw });
            put_attributes(datagram, config, encap, mark);
        });
    }
}

fn put_attributes(
    datagram: &mut NetlinkDatagram,
    config: &SharedSaConfig,
    encap: Option<RawEncap>,
    mark: Option<RawMark>,
) {
    if let Some(encap) = encap {
        datagram.attribute(AttributeType::Encap, &encap);
    }
    if let Some(mark) = mark {
        datagram.attribute(AttributeType::Mark, &mark);
    }
    put::put_output_mark(datagram, config.output_mark);
    put::put_mapping_age(datagram, config.mapping_age);
    put::put_keepalive(datagram, config.nat_keepalive);
    put::put_direction(datagram, config.direction);
}

/// The selector that a request wants.
enum NewSelector {
    /// This; `None` is any traffic.
    Given(Option<Selector>),
    /// The host-to-host selector of the new addresses.
    FromAddresses,
}

/// What is wrong with the request itself, in the kernel's order; its new family and selector.
fn words(raw: &RawStateMigration, call: &Call<'_>) -> Result<(Family, NewSelector), NetlinkError> {
    if raw.id.spi.get() == 0 {
        return Err(NetlinkError::invalid("Invalid SPI 0x0"));
    }
    if raw.reserved != 0 {
        return Err(NetlinkError::invalid("Reserved field must be zero"));
    }
    let unknown = raw.flags & !(CLEAR_OFFLOAD | UPDATE_SELECTOR);
    if unknown != 0 {
        let text = format!("Unknown flags: {unknown:#x}");
        return Err(NetlinkError { errno: number::EINVAL, text: Some(text.into()), offset: None });
    }
    // As its documentation has it; which words go with it is not said there.
    if raw.flags & CLEAR_OFFLOAD != 0 && call.attributes.has(AttributeType::OffloadDev) {
        return Err(NetlinkError::invalid("OFFLOAD_DEV and CLEAR_OFFLOAD exclude each other"));
    }
    let family = address::family(raw.new_family)
        .ok_or_else(|| NetlinkError::from(uxfrm_engine::Error::Family))?;
    let wish = match raw.flags & UPDATE_SELECTOR {
        0 => NewSelector::Given(selector(&raw.new_selector)?),
        _ => NewSelector::FromAddresses,
    };
    Ok((family, wish))
}

fn selector(raw: &RawSelector) -> Result<Option<Selector>, NetlinkError> {
    if raw.family == 0 {
        return Ok(None);
    }
    let family = address::family(raw.family)
        .ok_or_else(|| NetlinkError::from(uxfrm_engine::Error::StateSelectorFamily))?;
    common::selector(family, raw).map(Some).ok_or_else(|| common::prefix_too_long(family))
}

/// A selector from host to host follows the hosts.
fn selector_of_ends(
    old: &SaConfig,
    source: std::net::IpAddr,
    destination: std::net::IpAddr,
) -> Result<Selector, NetlinkError> {
    let host = uxfrm_engine::Prefix::host;
    let (from, to) = (host(old.source), host(old.id.destination));
    let fits = |selector: &&Selector| (selector.source, selector.destination) == (from, to);
    let selector = old.selector.as_ref().filter(fits).ok_or(
        const { NetlinkError::invalid("SA selector is not a single-host match for SA addresses") },
    )?;
    Ok(Selector { source: host(source), destination: host(destination), ..*selector })
}

/// Type 0 is none; without the attribute it stays.
fn encap(
    call: &Call<'_>,
    old: &SaConfig,
    family: Family,
) -> Result<Option<UdpEncap>, NetlinkError> {
    let Some(raw) = call.attributes.read::<RawEncap>(AttributeType::Encap) else {
        return Ok(old.encap);
    };
    if raw.kind == 0 {
        return Ok(None);
    }
    match decode::encap(&call.attributes, family) {
        Ok(Some(encap)) if encap.kind.properties().allows_migration => Ok(Some(encap)),
        Ok(_) | Err(_) => Err(NetlinkError::invalid("Unsupported encapsulation type")),
    }
}

/// What needs an encapsulation.
fn timers(
    call: &Call<'_>,
    old: &SaConfig,
    encap: Option<UdpEncap>,
) -> Result<(Option<NonZeroU32>, Option<KeepaliveInterval>), NetlinkError> {
    let mapping_age = decode::mapping_age(&call.attributes);
    if mapping_age.is_some() {
        if encap.is_none() {
            return Err(NetlinkError::invalid("MTIMER_THRESH requires encapsulation"));
        }
        if old.direction == Some(Direction::Out) {
            return Err(NetlinkError::invalid("MTIMER_THRESH should not be set on output SA"));
        }
    }
    let keepalive = decode::keepalive(&call.attributes);
    if keepalive.flatten().is_some() && encap.is_none() {
        return Err(NetlinkError::invalid("NAT_KEEPALIVE_INTERVAL requires encapsulation"));
    }
    Ok((mapping_age.unwrap_or(old.mapping_age), keepalive.unwrap_or(old.nat_keepalive)))
}

/// Whatever is wrong with the new state, the kernel says `EINVAL` and why.
fn refusal(error: uxfrm_engine::Error) -> NetlinkError {
    if error == uxfrm_engine::Error::Exists {
        return NetlinkError::new(number::EEXIST, "New SA tuple already occupied");
    }
    NetlinkError { errno: number::EINVAL, ..error.into() }
}
