//! Dumps: all states or policies that were there when it began, in as many datagrams as it takes.

use std::{sync::Arc, vec};

use uxfrm_engine::{Database, PolicyEntry, Sa};

use super::{Server, client::ClientId, larval::Larval, state::Found};
use crate::{
    AttributeType, Attributes, Datagram, MessageType, Refusal,
    address::{family_number, matches, raw},
    datagram::DUMP_LEN,
    decode::common::protocol_is_meant,
    encode::{common::Calendar, policy as encode},
    layout::RawAddressFilter,
    message::{DONE, Flags, HEADER_LEN, Message},
    refusal::number,
};

/// A dump under way. It holds what it has still to show, so changes meanwhile do not disturb it.
#[derive(Debug)]
pub(crate) struct Dump {
    seq: u32,
    rest: Rest,
    waiting: Option<Item>,
    errno: i32,
}

/// One datagram of a dump.
pub(super) struct Part {
    pub(super) datagram: Datagram,
    pub(super) is_last: bool,
}

#[derive(Debug)]
enum Rest {
    States(vec::IntoIter<Found>),
    Policies(vec::IntoIter<Arc<PolicyEntry>>),
}

#[derive(Debug)]
enum Item {
    State(Found),
    Policy(Arc<PolicyEntry>),
}

/// Which states a client wants to see (`__xfrm_state_filter_match`).
struct Filter {
    protocol: u8,
    addresses: Option<RawAddressFilter>,
}

impl Server {
    /// The youngest comes first, as in the kernel.
    pub(super) fn begin_dump(
        &mut self,
        client: ClientId,
        kind: MessageType,
        message: Message<'_>,
        database: &Database,
    ) -> Result<(), Refusal> {
        if self.is_dumping(client) {
            return Err(Refusal::bare(number::EBUSY));
        }
        let (rest, errno) = if kind == MessageType::GetSa {
            // A wrong filter is said at the end of a dump of nothing.
            let found = Filter::parse(message).map(|filter| self.states(&filter, database));
            let errno = found.as_ref().err().map_or(0, |refusal| refusal.errno);
            (Rest::States(found.unwrap_or_default().into_iter()), errno)
        } else {
            (Rest::Policies(policies(database).into_iter()), 0)
        };
        let dump = Dump { seq: message.header.seq, rest, waiting: None, errno };
        self.clients.of(client).dump = Some(dump);
        Ok(())
    }

    fn states(&self, filter: &Filter, database: &Database) -> Vec<Found> {
        let snapshot = database.current();
        let real = snapshot.sad.iter().filter(|sa| filter.takes_sa(sa));
        let real = real.map(|sa| Found::Sa(Arc::clone(sa)));
        let larval = self.larvals.iter().filter(|larval| filter.takes_larval(larval));
        let mut found: Vec<_> = real.chain(larval.cloned().map(Found::Larval)).collect();
        found.sort_by_key(|found| std::cmp::Reverse(found.age()));
        found
    }
}

impl Dump {
    /// As many messages as fit, at least one; then `NLMSG_DONE` alone.
    pub(super) fn next_part(&mut self, client: ClientId, calendar: Calendar) -> Part {
        let mut datagram = Datagram::for_dump();
        while let Some(item) = self.waiting.take().or_else(|| self.rest.next()) {
            let before = datagram.len();
            datagram.begin(item.kind() as u16, Flags::MULTI.bits(), self.seq, client.port);
            item.put(&mut datagram, calendar);
            if before != 0 && datagram.len() > DUMP_LEN {
                datagram.cancel();
                self.waiting = Some(item);
                break;
            }
        }
        let is_last = datagram.is_empty();
        if is_last {
            datagram.begin(DONE, Flags::MULTI.bits(), self.seq, client.port).put(&-self.errno);
        }
        Part { datagram, is_last }
    }
}

impl Iterator for Rest {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        match self {
            Self::States(states) => states.next().map(Item::State),
            Self::Policies(policies) => policies.next().map(Item::Policy),
        }
    }
}

impl Item {
    const fn kind(&self) -> MessageType {
        match self {
            Self::State(_) => MessageType::NewSa,
            Self::Policy(_) => MessageType::NewPolicy,
        }
    }

    fn put(&self, datagram: &mut Datagram, calendar: Calendar) {
        match self {
            Self::State(found) => found.put(datagram, calendar),
            Self::Policy(entry) => {
                datagram.put(&encode::info(entry, calendar));
                encode::attributes(datagram, &entry.policy());
            }
        }
    }
}

impl Found {
    /// States added at one moment stand by SPI.
    fn age(&self) -> (uxfrm_engine::Moment, u32) {
        match self {
            Self::Sa(sa) => (sa.added(), sa.id().spi.0),
            Self::Larval(larval) => (larval.added, larval.id.spi.0),
        }
    }
}

impl Filter {
    fn parse(message: Message<'_>) -> Result<Self, Refusal> {
        let attributes = Attributes::parse(message.body(), HEADER_LEN)?;
        let addresses = attributes.read::<RawAddressFilter>(AttributeType::AddressFilter);
        if addresses.is_some_and(|filter| filter.source_len.max(filter.destination_len) > 128) {
            return Err(Refusal::bare(number::EINVAL));
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

fn policies(database: &Database) -> Vec<Arc<PolicyEntry>> {
    let mut all: Vec<_> = database.current().spd.iter().cloned().collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.place().age()));
    all
}
