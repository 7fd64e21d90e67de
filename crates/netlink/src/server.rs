//! The server: requests in, answers and notifications out, all on the one writer of the databases.
//!
//! It mirrors `net/xfrm/xfrm_user.c: xfrm_user_rcv_msg` and `net/netlink/af_netlink.c:
//! netlink_rcv_skb`. Callers check access: [`Server::handle`] takes CAP_NET_ADMIN for granted.

pub(crate) mod answers;
pub(crate) mod client;
pub(crate) mod outbox;

mod aevent;
mod changes;
mod dump;
pub(crate) mod export;
mod info;
mod larval;
mod larval_table;
mod migrate;
mod notify;
mod policy;
mod relocate;
mod reply;
mod state;

use uxfrm_engine::{AcquireView, Database, Event, KeyManagers, Moment, Snapshot};
use uxfrm_netlink_wire::{
    NLMSG_MIN_TYPE, NetlinkFlags, NetlinkHeader, NetlinkMessage, NetlinkMessages, aligned,
};
use zerocopy::{FromBytes, Immutable};

use crate::{
    attribute::Attributes,
    encode::common::Calendar,
    layout::{
        RawAcquire, RawAevent, RawExpire, RawMapping, RawPolicy, RawPolicyExpire, RawPolicyId,
        RawSa, RawSaId, RawSpiRequest, RawStateMigration,
    },
    message::MessageType,
    refusal::{NetlinkError, number},
};
use client::{ClientId, Clients, Groups, SocketOptions};
use info::Thresholds;
use larval_table::LarvalTable;
use outbox::Outbox;

/// Settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerSettings {
    /// Nanoseconds from 1970 to [`Moment`] 0, for the times in answers; see [`Server::set_epoch`].
    pub epoch: u64,
    /// Where random SPIs start from.
    pub seed: u64,
    /// Seconds that a larval state lives (`net.core.xfrm_acq_expires`), 30 by default in Linux.
    pub acquire_expires: u32,
    /// How many processors the machine may have: `pcpu-num` is below that.
    pub cpus: u32,
}

/// Clients, and their business outside the databases: larval states, dumps, hash thresholds.
#[derive(Debug)]
pub struct Server {
    clients: Clients,
    larvals: LarvalTable,
    thresholds: Thresholds,
    calendar: Calendar,
    cpus: u32,
    /// When counters are to be looked at again; `None` while nobody listens to them.
    next_look: Option<Moment>,
}

/// One request under way.
struct Call<'a> {
    client: ClientId,
    message: NetlinkMessage<'a>,
    attributes: Attributes<'a>,
    database: &'a mut Database,
    now: Moment,
    out: &'a mut Outbox,
}

impl Server {
    /// A server without clients.
    #[must_use]
    pub fn new(settings: ServerSettings) -> Self {
        Self {
            clients: Clients::default(),
            larvals: LarvalTable::new(settings.seed, settings.acquire_expires),
            thresholds: Thresholds::default(),
            calendar: Calendar { start: settings.epoch },
            cpus: settings.cpus,
            next_look: None,
        }
    }

    /// Adds a client or replaces its groups and options (`bind`, `NETLINK_ADD_MEMBERSHIP`); its
    /// dump goes on.
    pub fn join(&mut self, client: ClientId, groups: Groups, options: SocketOptions) {
        self.clients.join(client, groups, options);
    }

    /// Forgets a client, its groups and its dump.
    pub fn leave(&mut self, client: ClientId) {
        self.clients.leave(client);
    }

    /// Seconds that larval states live from now on (a write to `net.core.xfrm_acq_expires`).
    pub fn set_acquire_expires(&mut self, seconds: u32) {
        self.larvals.set_lifetime(seconds);
    }

    /// Sets the nanoseconds from 1970 to [`Moment`] 0, after a clock step. Key managers subtract
    /// times in answers from the clock to get a state's idle time.
    pub fn set_epoch(&mut self, nanoseconds: u64) {
        self.calendar.follow(nanoseconds);
    }

    /// Carries out all requests of a datagram. Of a dump only the first part is sent;
    /// [`Server::resume`] sends the others.
    pub fn handle(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        database: &mut Database,
        now: Moment,
        out: &mut Outbox,
    ) {
        self.handle_with_hook(client, bytes, database, now, &mut |_| Ok(None), out);
    }

    /// As [`Server::handle`], and calls `attend` after each request, before anybody is notified. It
    /// may return a warning for the client; if it refuses, it has rolled back the databases, and
    /// only the client is told.
    pub fn handle_with_hook(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        database: &mut Database,
        now: Moment,
        attend: &mut impl FnMut(&mut Database) -> Result<Option<&'static str>, NetlinkError>,
        out: &mut Outbox,
    ) {
        for message in NetlinkMessages::of(bytes) {
            let options = self.clients.options(client);
            if self.clients.is_chain_broken(client, message) {
                if message.flags().contains(NetlinkFlags::ACK) {
                    let refusal = NetlinkError::CHAIN_BROKEN;
                    out.answer(client, reply::refuse(client, options, message, &refusal));
                }
                continue;
            }
            let (told, larvals) = (out.len(), self.larvals.checkpoint());
            let mut answer = self.carry_out(client, message, database, now, out);
            if let Outcome::Answered(Ok(warning)) = &mut answer {
                match attend(database) {
                    Ok(another) => *warning = another.or(*warning),
                    Err(refusal) => {
                        out.truncate(told);
                        self.larvals.roll_back_to(larvals);
                        answer = Outcome::Answered(Err(refusal));
                    }
                }
            }
            match answer {
                Outcome::Answered(Ok(warning)) => {
                    if message.flags().contains(NetlinkFlags::ACK) {
                        out.answer(client, reply::acknowledge(client, options, message, warning));
                    }
                }
                Outcome::Answered(Err(refusal)) => {
                    self.clients.record_refusal(client, message);
                    out.answer(client, reply::refuse(client, options, message, &refusal));
                }
                Outcome::Dumping => {}
            }
        }
    }

    /// Makes all changes to larval states final.
    pub fn commit(&mut self) {
        self.larvals.let_stand();
    }

    /// Rolls larval states back to [`Server::commit`], for an owner that rolls back the
    /// databases.
    pub fn roll_back(&mut self) {
        self.larvals.roll_back_to(0);
    }

    /// Refuses all requests of a datagram except dumps, after the owner of the databases has rolled
    /// them back and before anybody was notified.
    pub fn refuse(&self, client: ClientId, bytes: &[u8], refusal: &NetlinkError, out: &mut Outbox) {
        let options = self.clients.options(client);
        let requests = NetlinkMessages::of(bytes)
            .filter(|message| !message.flags().contains(NetlinkFlags::DUMP));
        for message in requests {
            out.answer(client, reply::refuse(client, options, message, refusal));
        }
    }

    /// Whether a client's dump has more to give.
    #[must_use]
    pub fn is_dumping(&self, client: ClientId) -> bool {
        self.clients.known(client).is_some_and(|client| client.dump.is_some())
    }

    /// Sends the next datagram of a dump, when the client's socket has room; none if the client's
    /// filter excludes all states that were looked at. A dump holds no state between two calls: it
    /// shows neither states added since it began nor states deleted meanwhile.
    pub fn resume(&mut self, client: ClientId, database: &Database, out: &mut Outbox) {
        let slot = &mut self.clients.of(client).dump;
        let Some(dump) = slot else { return };
        let part = dump.next_part(client, self.calendar, database);
        if part.is_last {
            *slot = None;
        }
        if !part.datagram.is_empty() {
            out.answer(client, part.datagram);
        }
    }

    /// Notifies listeners of events on the data path or of timers. `before` is the snapshot before
    /// the event: it still has states and policies that reached a hard limit.
    pub fn announce(
        &mut self,
        event: &Event,
        before: &Snapshot,
        database: &mut Database,
        now: Moment,
        out: &mut Outbox,
    ) {
        notify::event(self, event, (before, database), now, out);
    }

    /// When [`Server::handle_timeout`] must be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.larvals.first_expiry()
    }

    /// Lets larval states that nobody turned into real ones go, and says so.
    pub fn handle_timeout(&mut self, now: Moment, out: &mut Outbox) {
        while let Some(larval) = self.larvals.take_expired(now) {
            out.multicast(&self.clients, Groups::EXPIRE, || {
                notify::larval_expired(&larval, self.calendar)
            });
        }
    }

    /// Publishes acquire listeners and larval states to workers if they changed. Call it after
    /// [`Server::join`], [`Server::leave`], [`Server::handle`], [`Server::announce`] and
    /// [`Server::handle_timeout`].
    pub fn publish_acquires(&mut self, database: &mut Database) {
        let key_managers = match self.clients.listeners(Groups::ACQUIRE).next() {
            Some(_) => KeyManagers::Listening,
            None => KeyManagers::Absent,
        };
        database
            .take_lost_devices()
            .into_iter()
            .for_each(|device| self.larvals.remove_on_device(device));
        self.commit();
        for (device, handle) in self.larvals.take_released_handles() {
            database.detach_larval(device, handle);
        }
        let known = database.current();
        if self.larvals.take_changed() || known.acquires.key_managers != key_managers {
            let (lifetime, pending) = (self.larvals.lifetime(), self.larvals.pending());
            let refused = self.larvals.refused();
            database.set_acquires(AcquireView { key_managers, lifetime, pending, refused });
        }
    }

    fn carry_out(
        &mut self,
        client: ClientId,
        message: NetlinkMessage<'_>,
        database: &mut Database,
        now: Moment,
        out: &mut Outbox,
    ) -> Outcome {
        if !message.flags().contains(NetlinkFlags::REQUEST) || message.header.kind < NLMSG_MIN_TYPE
        {
            return Outcome::Answered(Ok(None));
        }
        let Some(kind) = MessageType::from_number(message.header.kind) else {
            return Outcome::Answered(Err(NetlinkError::bare(number::EINVAL)));
        };
        // The kernel looks at either bit of `NLM_F_DUMP`.
        let dumps = matches!(kind, MessageType::GetSa | MessageType::GetPolicy);
        if dumps && message.flags().intersects(NetlinkFlags::DUMP) {
            if kind == MessageType::GetSa {
                database.update_all_counts();
            }
            return match self.begin_dump(client, kind, message) {
                Ok(()) => {
                    self.resume(client, database, out);
                    Outcome::Dumping
                }
                Err(refusal) => Outcome::Answered(Err(refusal)),
            };
        }
        Outcome::Answered(self.request(client, kind, message, database, now, out))
    }

    /// Gives the warning that goes with a success.
    fn request(
        &mut self,
        client: ClientId,
        kind: MessageType,
        message: NetlinkMessage<'_>,
        database: &mut Database,
        now: Moment,
        out: &mut Outbox,
    ) -> Result<Option<&'static str>, NetlinkError> {
        let start = aligned(head_len(kind));
        if message.body().len() < head_len(kind) {
            return Err(NetlinkError::invalid("Invalid header length"));
        }
        let tail = message.body().get(start..).unwrap_or_default();
        if kind == MessageType::NewSpdInfo {
            let warning = self.thresholds.set(tail, NetlinkHeader::LEN + start)?;
            database.request_rebuild();
            return Ok(warning);
        }
        let attributes = Attributes::parse(tail, NetlinkHeader::LEN + start)?;
        let warning = attributes.has_leftover().then_some(LEFTOVER);
        reject_unused(kind, &attributes).map_err(|refusal| refusal.or_words(warning))?;
        let mut call = Call { client, message, attributes, database, now, out };
        match self.dispatch(kind, &mut call) {
            Ok(()) => Ok(warning),
            Err(refusal) => Err(refusal.or_words(warning)),
        }
    }

    /// The kernel says it with `ERANGE` of a state and with `EINVAL` elsewhere.
    fn check_pcpu(&self, call: &Call<'_>, errno: i32) -> Result<(), NetlinkError> {
        let pcpu = call.attributes.read::<u32>(crate::AttributeType::SaPcpu);
        match pcpu.filter(|pcpu| *pcpu >= self.cpus) {
            Some(_) => Err(NetlinkError::new(errno, "pCPU number too big")),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, kind: MessageType, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        match kind {
            MessageType::NewSa => self.new_sa(call),
            MessageType::UpdSa => self.update_sa(call),
            MessageType::DelSa => self.delete_sa(call),
            MessageType::GetSa => self.one_sa(call),
            MessageType::FlushSa => self.flush_sas(call),
            MessageType::AllocSpi => self.allocate_spi(call),
            MessageType::Expire => self.expire_sa(call),
            MessageType::NewPolicy | MessageType::UpdPolicy => self.add_policy(kind, call),
            MessageType::DelPolicy => self.delete_policy(call),
            MessageType::GetPolicy => self.one_policy(call),
            MessageType::FlushPolicy => self.flush_policies(call),
            MessageType::PolExpire => self.expire_policy(call),
            MessageType::SetDefault => self.set_defaults(call),
            MessageType::GetDefault => Self::defaults(call),
            MessageType::GetSadInfo => self.sad_info(call),
            MessageType::GetSpdInfo => self.spd_info(call),
            MessageType::NewAe => self.set_counters(call),
            MessageType::GetAe => self.counters(call),
            MessageType::Migrate => self.migrate(call),
            MessageType::MigrateState => self.migrate_state(call),
            MessageType::Acquire => {
                Err(NetlinkError::not_yet("Acquires come from packets, not from clients"))
            }
            // Never asked for, only sent.
            MessageType::Report
            | MessageType::NewSadInfo
            | MessageType::NewSpdInfo
            | MessageType::Mapping => Err(NetlinkError::bare(number::EINVAL)),
        }
    }
}

/// Result of a request.
enum Outcome {
    /// Done or refused; a warning may go with success.
    Answered(Result<Option<&'static str>, NetlinkError>),
    /// A dump began, which is never acknowledged.
    Dumping,
}

/// The kernel warns with this and goes on.
const LEFTOVER: &str = "bytes leftover after parsing attributes";

impl NetlinkError {
    /// Gives a refusal without text a warning's text.
    fn or_words(mut self, warning: Option<&'static str>) -> Self {
        self.text = self.text.or_else(|| warning.map(Into::into));
        self
    }
}

impl Call<'_> {
    /// The structure that the request begins with; `dispatch` has checked its length.
    fn head<T: FromBytes + Immutable>(&self) -> Result<T, NetlinkError> {
        T::read_from_prefix(self.message.body())
            .map(|(head, _)| head)
            .map_err(|_| NetlinkError::invalid("Invalid header length"))
    }

    /// Begins a message that answers this one.
    fn answer(&self, kind: MessageType) -> crate::NetlinkDatagram {
        crate::NetlinkDatagram::new(kind as u16, 0, self.message.header.seq, self.client.port)
    }

    /// Notifies a group of this request by a message that `fill` completes, with the request's port
    /// id.
    fn tell(
        &mut self,
        clients: &Clients,
        group: Groups,
        kind: MessageType,
        fill: impl FnOnce(&mut crate::NetlinkDatagram),
    ) {
        let header = self.message.header;
        self.out.multicast(clients, group, || {
            let mut datagram = crate::NetlinkDatagram::new(kind as u16, 0, header.seq, header.pid);
            fill(&mut datagram);
            datagram
        });
    }
}

/// `xfrm_msg_min`.
const fn head_len(kind: MessageType) -> usize {
    match kind {
        MessageType::NewSa | MessageType::UpdSa => size_of::<RawSa>(),
        MessageType::DelSa | MessageType::GetSa => size_of::<RawSaId>(),
        MessageType::NewPolicy | MessageType::UpdPolicy => size_of::<RawPolicy>(),
        MessageType::DelPolicy | MessageType::GetPolicy | MessageType::Migrate => {
            size_of::<RawPolicyId>()
        }
        MessageType::AllocSpi => size_of::<RawSpiRequest>(),
        MessageType::Acquire => size_of::<RawAcquire>(),
        MessageType::Expire => size_of::<RawExpire>(),
        MessageType::PolExpire => size_of::<RawPolicyExpire>(),
        MessageType::FlushSa => 1,
        MessageType::NewAe | MessageType::GetAe => size_of::<RawAevent>(),
        MessageType::Report => 60,
        MessageType::Mapping => size_of::<RawMapping>(),
        MessageType::GetSadInfo | MessageType::NewSpdInfo | MessageType::GetSpdInfo => 4,
        MessageType::SetDefault | MessageType::GetDefault => 3,
        MessageType::FlushPolicy | MessageType::NewSadInfo => 0,
        MessageType::MigrateState => size_of::<RawStateMigration>(),
    }
}

/// `xfrm_reject_unused_attr`: these attributes mean nothing elsewhere.
fn reject_unused(kind: MessageType, attributes: &Attributes<'_>) -> Result<(), NetlinkError> {
    use crate::AttributeType as Type;
    let about_states =
        matches!(kind, MessageType::NewSa | MessageType::UpdSa | MessageType::AllocSpi);
    let takes_pcpu = about_states || kind == MessageType::Acquire;
    if attributes.has(Type::SaDir) && !about_states {
        return Err(NetlinkError::invalid("Invalid attribute SA_DIR"));
    }
    if attributes.has(Type::SaPcpu) && !takes_pcpu {
        return Err(NetlinkError::invalid("Invalid attribute SA_PCPU"));
    }
    Ok(())
}
