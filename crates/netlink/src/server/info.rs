//! Counts, hash thresholds and defaults: GETSADINFO, NEW- and GETSPDINFO, SET- and GETDEFAULT.

use uxfrm_engine::{Action, DefaultActions, Direction};
use uxfrm_netlink_wire::RawAttributes;

use super::{Call, LEFTOVER, Server, client::Groups};
use crate::{
    MessageType, NetlinkDatagram, NetlinkError,
    encode::policy::default_number,
    layout::{RawDefaults, RawHashInfo, RawSpdInfo, RawThreshold},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// `XFRMA_SAD_*`, `XFRMA_SPD_*`.
const SAD_COUNT: u16 = 1;
const SAD_HASH: u16 = 2;
const SPD_INFO: u16 = 1;
const SPD_HASH: u16 = 2;
const SPD_IPV4_THRESHOLD: u16 = 3;
const SPD_IPV6_THRESHOLD: u16 = 4;

/// Warning with a success: programs do not expect a refusal here.
const PLANNED_ANEW: &str = "Hash thresholds are kept and shown; policies are planned anew, by lengths that are found and not told";

/// `xfrm_policy_hashmax`, `xfrm_state_hashmax`.
const MOST_BUCKETS: u32 = 1024 * 1024;

/// Prefix lengths from which the kernel hashes policies (`xfrm_set_spdinfo`). Stored and shown;
/// their only effect is that the classifier is rebuilt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    ipv4: RawThreshold,
    ipv6: RawThreshold,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            ipv4: RawThreshold { local: 32, remote: 32 },
            ipv6: RawThreshold { local: 128, remote: 128 },
        }
    }
}

impl Thresholds {
    /// NEWSPDINFO: its attributes are a numbering of their own. A success may come with a warning.
    pub(super) fn set(
        &mut self,
        bytes: &[u8],
        start: usize,
    ) -> Result<Option<&'static str>, NetlinkError> {
        let mut attributes = RawAttributes::of(bytes);
        let mut new = *self;
        let mut given = false;
        let (mut ipv4_is_wrong, mut ipv6_is_wrong) = (false, false);
        for attribute in attributes.by_ref() {
            if ![SPD_IPV4_THRESHOLD, SPD_IPV6_THRESHOLD].contains(&attribute.kind) {
                continue;
            }
            let Ok((threshold, _)) = RawThreshold::read_from_prefix(attribute.value) else {
                return Err(NetlinkError::too_short(start + attribute.offset));
            };
            given = true;
            let highest = threshold.local.max(threshold.remote);
            if attribute.kind == SPD_IPV4_THRESHOLD {
                (new.ipv4, ipv4_is_wrong) = (threshold, highest > 32);
            } else {
                (new.ipv6, ipv6_is_wrong) = (threshold, highest > 128);
            }
        }
        if ipv4_is_wrong {
            return Err(NetlinkError::invalid("Invalid hash threshold (must be <= 32 for IPv4)"));
        }
        if ipv6_is_wrong {
            return Err(NetlinkError::invalid("Invalid hash threshold (must be <= 128 for IPv6)"));
        }
        *self = new;
        let leftover = (attributes.leftover() != 0).then_some(LEFTOVER);
        let advice = given.then_some(PLANNED_ANEW);
        Ok(leftover.or(advice))
    }
}

impl Server {
    pub(super) fn sad_info(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let flags: u32 = call.head()?;
        let count = call.database.current().sad.len() + self.larvals.len();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let buckets = count.next_power_of_two().clamp(8, MOST_BUCKETS);
        let mut datagram = call.answer(MessageType::NewSadInfo);
        datagram.put(&flags);
        datagram.raw_attribute(SAD_COUNT, &[count.as_bytes()]);
        let hash = RawHashInfo { buckets, most: MOST_BUCKETS };
        datagram.raw_attribute(SAD_HASH, &[hash.as_bytes()]);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    pub(super) fn spd_info(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let flags: u32 = call.head()?;
        let mut counts = [0_u32; 3];
        call.database
            .current()
            .spd
            .iter()
            .for_each(|entry| counts[entry.direction() as usize] += 1);
        let of = |direction: Direction| counts[direction as usize];
        let info = RawSpdInfo {
            inbound: of(Direction::In),
            outbound: of(Direction::Out),
            forward: of(Direction::Forward),
            socket_inbound: 0,
            socket_outbound: 0,
            socket_forward: 0,
        };
        let all = counts.iter().sum::<u32>();
        let buckets = all.next_power_of_two().clamp(8, MOST_BUCKETS) - 1;
        let mut datagram = call.answer(MessageType::NewSpdInfo);
        datagram.put(&flags);
        datagram.raw_attribute(SPD_INFO, &[info.as_bytes()]);
        let hash = RawHashInfo { buckets, most: MOST_BUCKETS };
        datagram.raw_attribute(SPD_HASH, &[hash.as_bytes()]);
        datagram.raw_attribute(SPD_IPV4_THRESHOLD, &[self.thresholds.ipv4.as_bytes()]);
        datagram.raw_attribute(SPD_IPV6_THRESHOLD, &[self.thresholds.ipv6.as_bytes()]);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// Numbers that are neither block nor accept leave a direction as it is.
    pub(super) fn set_defaults(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let wanted: RawDefaults = call.head()?;
        let action = |number, old| match number {
            1 => Action::Block,
            2 => Action::Allow,
            _ => old,
        };
        let defaults = call.database.apply(call.now, |change| {
            let old = change.defaults();
            let new = DefaultActions {
                inbound: action(wanted.inbound, old.inbound),
                forward: action(wanted.forward, old.forward),
                outbound: action(wanted.outbound, old.outbound),
            };
            change.set_defaults(new);
            new
        });
        call.out.multicast(&self.clients, Groups::POLICY, || {
            let mut datagram = NetlinkDatagram::new(MessageType::GetDefault as u16, 0, 0, 0);
            datagram.put(&raw(defaults));
            datagram
        });
        Ok(())
    }

    pub(super) fn defaults(call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let mut datagram = call.answer(MessageType::GetDefault);
        datagram.put(&raw(call.database.current().spd.defaults()));
        call.out.answer(call.client, datagram);
        Ok(())
    }
}

/// What a message says that has all of them.
pub(super) const fn defaults(raw: RawDefaults) -> DefaultActions {
    const fn action(number: u8) -> Action {
        if number == 1 { Action::Block } else { Action::Allow }
    }
    DefaultActions {
        inbound: action(raw.inbound),
        forward: action(raw.forward),
        outbound: action(raw.outbound),
    }
}

pub(super) fn raw(defaults: DefaultActions) -> RawDefaults {
    RawDefaults {
        inbound: default_number(defaults.inbound),
        forward: default_number(defaults.forward),
        outbound: default_number(defaults.outbound),
    }
}
