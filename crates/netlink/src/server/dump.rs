//! Dumps of all states or policies, youngest first, in parts. As in the kernel (`xfrm_state_walk`,
//! `xfrm_policy_walk`) a dump keeps its place in the order of insertion: it shows neither entries
//! deleted meanwhile nor new ones.

use std::{iter::Peekable, sync::Arc, vec};

use uxfrm_engine::{Database, PolicyCursor, PolicyEntry, Sa, StateCursor};
use uxfrm_netlink_wire::{NLMSG_DONE, NetlinkFlags, NetlinkHeader, NetlinkMessage};

use super::{Server, client::ClientId, larval::Larval, state::ReplyAttributes};
use crate::{
    AttributeType, Attributes, MessageType, NetlinkDatagram, NetlinkError,
    address::{family_number, matches, raw},
    datagram::DUMP_LEN,
    decode::common::protocol_is_meant,
    encode::{common::Calendar, policy as encode},
    layout::RawAddressFilter,
    refusal::number,
};

/// A dump under way.
#[derive(Debug)]
pub(crate) struct Dump {
    seq: u32,
    rest: Rest,
}

/// Most states looked at for one datagram, shown or not: other clients wait meanwhile.
const AT_ONCE: usize = 256;

/// One datagram of a dump.
pub(super) struct DumpPart {
    /// Empty where the states looked at were none that the client wants to see.
    pub(super) datagram: NetlinkDatagram,
    pub(super) is_last: bool,
}

/// How far a dump came with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// To where all has been shown.
    End,
    /// To where the datagram is full, or enough was looked at.
    Halt,
}

/// What is still to be shown.
#[derive(Debug)]
enum Rest {
    States(Box<Walk>),
    /// Those that this has not passed.
    Policies(PolicyCursor),
    /// Nothing: what was asked for makes no sense, for this reason.
    Refused(i32),
}

/// The way along all states. It holds none of them.
#[derive(Debug)]
struct Walk {
    filter: Filter,
    cursor: StateCursor,
    larvals: Peekable<vec::IntoIter<Larval>>,
}

#[derive(Debug)]
enum Item {
    State(ReplyAttributes),
    Policy(Arc<PolicyEntry>),
}

/// Which states a client wants to see (`__xfrm_state_filter_match`).
#[derive(Debug)]
struct Filter {
    protocol: u8,
    addresses: Option<RawAddressFilter>,
}

impl Server {
    pub(super) fn begin_dump(
        &mut self,
        client: ClientId,
        kind: MessageType,
        message: NetlinkMessage<'_>,
    ) -> Result<(), NetlinkError> {
        if self.is_dumping(client) {
            return Err(NetlinkError::bare(number::EBUSY));
        }
        let rest = if kind == MessageType::GetSa {
            // A wrong filter is said at the end of a dump of nothing.
            match Filter::parse(message) {
                Ok(filter) => Rest::States(Box::new(self.walk(filter))),
                Err(refusal) => Rest::Refused(refusal.errno),
            }
        } else {
            Rest::Policies(PolicyCursor::default())
        };
        self.clients.of(client).dump = Some(Dump { seq: message.header.seq, rest });
        Ok(())
    }

    fn walk(&self, filter: Filter) -> Walk {
        let larvals = self.larvals.iter().filter(|larval| filter.takes_larval(larval));
        let mut larvals: Vec<_> = larvals.cloned().collect();
        larvals.sort_by_key(|larval| std::cmp::Reverse((larval.added, larval.id.spi)));
        Walk { filter, cursor: StateCursor::default(), larvals: larvals.into_iter().peekable() }
    }
}

impl Dump {
    /// As many messages as fit of those that are looked at; at the end, `NLMSG_DONE` alone.
    pub(super) fn next_part(
        &mut self,
        client: ClientId,
        calendar: Calendar,
        database: &Database,
    ) -> DumpPart {
        let mut datagram = NetlinkDatagram::for_dump();
        let seq = self.seq;
        let mut fits = |item: &Item| {
            let before = datagram.len();
            datagram.begin(item.kind() as u16, NetlinkFlags::MULTI.bits(), seq, client.port);
            item.put(&mut datagram, calendar);
            let fits = before == 0 || datagram.len() <= DUMP_LEN;
            if !fits {
                datagram.cancel();
            }
            fits
        };
        let reach = match &mut self.rest {
            Rest::States(walk) => walk.go_on(database, &mut fits),
            Rest::Policies(cursor) => {
                let all = database.policies_from(*cursor);
                let shown = all.take_while(|(_, entry)| fits(&Item::Policy(Arc::clone(entry))));
                *cursor = shown.last().map_or(*cursor, |(passed, _)| passed);
                Reach::End
            }
            Rest::Refused(_) => Reach::End,
        };
        let is_last = datagram.is_empty() && reach == Reach::End;
        if is_last {
            let errno = match self.rest {
                Rest::States(_) | Rest::Policies(_) => 0,
                Rest::Refused(errno) => errno,
            };
            datagram
                .begin(NLMSG_DONE, NetlinkFlags::MULTI.bits(), self.seq, client.port)
                .put(&-errno);
        }
        DumpPart { datagram, is_last }
    }
}

impl Walk {
    /// Shows states, from the youngest on, until one does not fit or [`AT_ONCE`] were looked at.
    fn go_on(&mut self, database: &Database, fits: &mut impl FnMut(&Item) -> bool) -> Reach {
        let Self { filter, cursor, larvals } = self;
        let mut states = database.states_from(*cursor);
        for sa in states.by_ref().take(AT_ONCE) {
            let is_younger = |larval: &Larval| larval.added >= sa.added();
            while let Some(larval) = larvals.peek().filter(|larval| is_younger(larval)) {
                if !fits(&Item::State(ReplyAttributes::Larval(larval.clone()))) {
                    return Reach::Halt;
                }
                larvals.next();
            }
            if filter.takes_sa(sa) && !fits(&Item::State(ReplyAttributes::Sa(Arc::clone(sa)))) {
                return Reach::Halt;
            }
            *cursor = StateCursor::behind(sa);
        }
        if states.next().is_some() {
            return Reach::Halt;
        }
        while let Some(larval) = larvals.peek() {
            if !fits(&Item::State(ReplyAttributes::Larval(larval.clone()))) {
                return Reach::Halt;
            }
            larvals.next();
        }
        Reach::End
    }
}

impl Item {
    const fn kind(&self) -> MessageType {
        match self {
            Self::State(_) => MessageType::NewSa,
            Self::Policy(_) => MessageType::NewPolicy,
        }
    }

    fn put(&self, datagram: &mut NetlinkDatagram, calendar: Calendar) {
        match self {
            Self::State(found) => found.put(datagram, calendar),
            Self::Policy(entry) => {
                datagram.put(&encode::info(entry, calendar));
                encode::attributes(datagram, entry);
            }
        }
    }
}

impl Filter {
    fn parse(message: NetlinkMessage<'_>) -> Result<Self, NetlinkError> {
        let attributes = Attributes::parse(message.body(), NetlinkHeader::LEN)?;
        let addresses = attributes.read::<RawAddressFilter>(AttributeType::AddressFilter);
        if addresses.is_some_and(|filter| filter.source_len.max(filter.destination_len) > 128) {
            return Err(NetlinkError::bare(number::EINVAL));
        }
        let protocol = attributes.read(AttributeType::Proto).unwrap_or(0);
        Ok(Self { protocol, addresses })
    }

    fn takes_sa(&self, sa: &Sa) -> bool {
        self.takes(sa.source(), sa.id())
    }

    fn takes_larval(&self, larval: &Larval) -> bool {
        self.takes(larval.source, larval.id)
    }

    fn takes(&self, source: std::net::IpAddr, id: uxfrm_engine::SaId) -> bool {
        const FAMILIES: [u16; 2] = [2, 10];
        let family = family_number(uxfrm_engine::Family::of(id.destination));
        protocol_is_meant(id.protocol, self.protocol)
            && self.addresses.is_none_or(|filter| {
                (!FAMILIES.contains(&filter.family) || filter.family == family)
                    && matches(raw(source), filter.source, filter.source_len)
                    && matches(raw(id.destination), filter.destination, filter.destination_len)
            })
    }
}
