//! Whether a tunnel carries what it is to carry, and why not: a pure function of what is known of
//! its policies and states.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quantity;

/// A tunnel that sent for so many seconds and received nothing is [`Health::OneWay`].
pub const UNANSWERED_SECONDS: u64 = 30;

/// A tunnel that carried nothing for so many seconds is [`Health::Idle`].
pub const IDLE_SECONDS: u64 = 120;

/// The health of a tunnel, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// What its policies protect cannot be sent, or cannot come in.
    Down,
    /// It sends, and nothing has come in for 30 seconds or more, or nearly all of it was dropped.
    OneWay,
    /// It can carry packets, and had none for two minutes or more.
    Idle,
    /// It carries packets.
    Up,
}

/// Why a tunnel is not up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HealthReason {
    /// No state fits the outbound template, and no key manager listens who could make one.
    NoState,
    /// No state fits the outbound template yet; a key manager has been asked for one.
    AcquirePending,
    /// No state fits the outbound template yet; the first packet has a key manager asked for one.
    WaitsForPacket,
    /// The outbound state passed its hard limit, and none has replaced it.
    Expired {
        /// The state's SPI.
        spi: String,
        /// When it passed its limit.
        seconds_ago: u64,
    },
    /// The outbound state has used all its sequence numbers.
    NumbersUsedUp,
    /// The state that fits the outbound template has `dir in`.
    WrongDirection,
    /// No state fits the inbound template: whatever it sends, nothing can come in.
    NoInboundState,
    /// It has sent, and received nothing since.
    NothingReceived {
        /// Packets sent by its present states.
        sent: u64,
        /// Packets received by its present states.
        received: u64,
        /// For how many seconds nothing has come in, from the last packet received or the first
        /// one sent.
        seconds: u64,
    },
    /// Its states opened packets, and nearly all of them were dropped afterwards.
    ReceivedDropped {
        /// The drop reason of most, as `in_no_policy`.
        drop_reason: String,
        /// Packets dropped lately.
        dropped: u64,
        /// Of so many received.
        received: u64,
        /// When the last one was.
        seconds_ago: u64,
    },
    /// Packets for it were dropped, as no state took them, and none has left since.
    SentDropped {
        /// The drop reason, as `out_no_state`.
        drop_reason: String,
        /// Packets dropped lately.
        dropped: u64,
        /// When the last one was.
        seconds_ago: u64,
    },
    /// No state fits its templates, all of which have `level use`: its packets leave plain.
    OptionalWithoutState,
    /// It has carried nothing for so long.
    Quiet {
        /// Seconds since the latest packet; `None` if there never was one.
        seconds: Option<u64>,
    },
}

/// The states of one direction of a tunnel, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideFacts {
    /// States that may carry packets.
    pub usable: u64,
    /// Why those that fit otherwise may not; for none that does, nothing.
    pub fault: Option<SideFault>,
    /// Packets that they carried.
    pub packets: u64,
    /// Seconds since the earliest first packet.
    pub first_seconds_ago: Option<u64>,
    /// Seconds since the latest packet.
    pub last_seconds_ago: Option<u64>,
    /// What was dropped of it lately, where nothing has passed since.
    pub dropped: Option<SideDrops>,
}

/// Packets of one direction that were dropped lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideDrops {
    /// Why, as `in_no_policy`.
    pub reason: String,
    /// How many.
    pub dropped: u64,
    /// Of so many.
    pub of: u64,
    /// Seconds since the last one.
    pub seconds_ago: u64,
}

/// Why a state that fits a template may not carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideFault {
    /// It passed its hard limit.
    Expired,
    /// It has used all its sequence numbers.
    NumbersUsedUp,
    /// It has the other `dir`.
    WrongDirection,
}

/// Who could make a state that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyManagement {
    /// Nobody listens for acquires.
    #[default]
    Absent,
    /// A key manager listens, and has not been asked.
    Listening,
    /// A key manager has been asked, and has not answered.
    Asked,
}

/// Whether packets of a tunnel may leave without a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requirement {
    /// They may not.
    #[default]
    Required,
    /// They leave plain (`level use`).
    Optional,
}

/// What is known of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthFacts {
    /// Its outbound side; `None` if no outbound policy leads there.
    pub outbound: Option<SideFacts>,
    /// Its inbound side; `None` if no `in` or `fwd` policy asks for it.
    pub inbound: Option<SideFacts>,
    /// Whether it is required.
    pub requirement: Requirement,
    /// Who makes its states.
    pub key_management: KeyManagement,
    /// An outbound state to this peer that passed its hard limit lately: SPI, and seconds since.
    pub expired: Option<(String, u64)>,
}

/// A tunnel's health, and the reason where it is not [`Health::Up`].
///
/// ```
/// use uxfrm_status::health::{Health, HealthFacts, HealthReason, SideFacts, judge};
///
/// let facts = HealthFacts { outbound: Some(SideFacts::default()), ..HealthFacts::default() };
/// assert_eq!(judge(&facts), (Health::Down, Some(HealthReason::NoState)));
/// ```
#[must_use]
pub fn judge(facts: &HealthFacts) -> (Health, Option<HealthReason>) {
    if let Some(outbound) = &facts.outbound
        && outbound.usable == 0
    {
        return without_outbound_state(facts, outbound);
    }
    if facts.inbound.as_ref().is_some_and(|inbound| inbound.usable == 0) {
        return without_inbound_state(facts);
    }
    if let Some(reason) = sent_dropped(facts) {
        return (Health::Down, Some(reason));
    }
    match received_dropped(facts).or_else(|| unanswered(facts)) {
        Some(reason) => (Health::OneWay, Some(reason)),
        None => by_use(facts),
    }
}

fn without_outbound_state(
    facts: &HealthFacts,
    outbound: &SideFacts,
) -> (Health, Option<HealthReason>) {
    if facts.requirement == Requirement::Optional {
        return (Health::Idle, Some(HealthReason::OptionalWithoutState));
    }
    let expired = facts.expired.clone();
    let expired = expired.map(|(spi, seconds_ago)| HealthReason::Expired { spi, seconds_ago });
    let reason = match (outbound.fault, facts.key_management) {
        (_, KeyManagement::Asked) => HealthReason::AcquirePending,
        (Some(SideFault::NumbersUsedUp), _) => HealthReason::NumbersUsedUp,
        (Some(SideFault::WrongDirection), _) => HealthReason::WrongDirection,
        (Some(SideFault::Expired), _) => expired.unwrap_or(HealthReason::NoState),
        (None, KeyManagement::Absent) => expired.unwrap_or(HealthReason::NoState),
        (None, KeyManagement::Listening) if expired.is_none() => {
            return (Health::Idle, Some(HealthReason::WaitsForPacket));
        }
        (None, KeyManagement::Listening) => expired.unwrap_or(HealthReason::NoState),
    };
    (Health::Down, Some(reason))
}

fn without_inbound_state(facts: &HealthFacts) -> (Health, Option<HealthReason>) {
    match facts.requirement {
        Requirement::Required => (Health::Down, Some(HealthReason::NoInboundState)),
        Requirement::Optional => (Health::Idle, Some(HealthReason::OptionalWithoutState)),
    }
}

/// What no state took, though one is there. A key manager may yet make one that does.
fn sent_dropped(facts: &HealthFacts) -> Option<HealthReason> {
    let is_awaited = match facts.key_management {
        KeyManagement::Absent => false,
        KeyManagement::Listening | KeyManagement::Asked => true,
    };
    let SideDrops { reason, dropped, of: _, seconds_ago } =
        facts.outbound.as_ref()?.dropped.clone().filter(|_| !is_awaited)?;
    Some(HealthReason::SentDropped { drop_reason: reason, dropped, seconds_ago })
}

/// What came in and got no further.
fn received_dropped(facts: &HealthFacts) -> Option<HealthReason> {
    let SideDrops { reason, dropped, of: received, seconds_ago } =
        facts.inbound.as_ref()?.dropped.clone()?;
    Some(HealthReason::ReceivedDropped { drop_reason: reason, dropped, received, seconds_ago })
}

/// What was sent for long enough and had no answer. A tunnel that only receives is not one-way: it
/// may be meant to.
fn unanswered(facts: &HealthFacts) -> Option<HealthReason> {
    let (outbound, inbound) = (facts.outbound.as_ref()?, facts.inbound.as_ref()?);
    let sent_last = outbound.last_seconds_ago?;
    let seconds = match inbound.last_seconds_ago {
        // Sent after the last one came in.
        Some(received) if received.saturating_sub(sent_last) >= UNANSWERED_SECONDS => received,
        Some(_) => return None,
        None => outbound.first_seconds_ago.filter(|first| *first >= UNANSWERED_SECONDS)?,
    };
    let (sent, received) = (outbound.packets, inbound.packets);
    Some(HealthReason::NothingReceived { sent, received, seconds })
}

fn by_use(facts: &HealthFacts) -> (Health, Option<HealthReason>) {
    let sides = [&facts.outbound, &facts.inbound].into_iter().flatten();
    match sides.filter_map(|side| side.last_seconds_ago).min() {
        Some(seconds) if seconds < IDLE_SECONDS => (Health::Up, None),
        seconds => (Health::Idle, Some(HealthReason::Quiet { seconds })),
    }
}

impl Health {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::OneWay => "one-way",
            Self::Idle => "idle",
            Self::Up => "up",
        }
    }

    /// Whether somebody should look: down or one-way.
    #[must_use]
    pub const fn is_bad(self) -> bool {
        match self {
            Self::Down | Self::OneWay => true,
            Self::Idle | Self::Up => false,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Display for HealthReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoState => {
                out.write_str("no state fits the template, and no key manager listens to make one")
            }
            Self::AcquirePending => {
                out.write_str("no state yet: a key manager is asked for one and has not answered")
            }
            Self::WaitsForPacket => {
                out.write_str("no state yet: the first packet asks a key manager for one")
            }
            Self::Expired { spi, seconds_ago } => {
                let ago = quantity::span(*seconds_ago);
                write!(out, "state {spi} expired {ago} ago, and none has replaced it")
            }
            Self::NumbersUsedUp => {
                out.write_str("the state has used all its sequence numbers: it must be replaced")
            }
            Self::WrongDirection => {
                out.write_str("the state that fits the outbound template has dir in")
            }
            Self::NoInboundState => {
                out.write_str("no state fits the inbound template: nothing can come in")
            }
            Self::NothingReceived { sent, received: 0, seconds } => {
                let sent = quantity::things(*sent, "packet", "packets");
                write!(out, "sent {sent} and received none in {}", quantity::span(*seconds))
            }
            Self::NothingReceived { seconds, .. } => {
                write!(out, "sends, and received nothing for {}", quantity::span(*seconds))
            }
            Self::ReceivedDropped { drop_reason, dropped, received, seconds_ago } => {
                let (received, ago) = (quantity::count(*received), quantity::span(*seconds_ago));
                let dropped = quantity::things(*dropped, "packet", "packets");
                write!(out, "nothing gets in: of {received} received {dropped} were dropped ")?;
                write!(out, "afterwards, the last {ago} ago: {drop_reason}")
            }
            Self::SentDropped { drop_reason, dropped, seconds_ago } => {
                let dropped = quantity::things(*dropped, "packet", "packets");
                let ago = quantity::span(*seconds_ago);
                write!(out, "no state takes what is to leave: {dropped} dropped, ")?;
                write!(out, "the last {ago} ago: {drop_reason}")
            }
            Self::OptionalWithoutState => {
                out.write_str("no state, and the template is optional (level use): it leaves PLAIN")
            }
            Self::Quiet { seconds: Some(seconds) } => {
                write!(out, "nothing for {}", quantity::span(*seconds))
            }
            Self::Quiet { seconds: None } => out.write_str("nothing so far"),
        }
    }
}

#[cfg(test)]
mod tests;
