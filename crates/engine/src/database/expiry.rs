//! Time limits of states and policies, and keepalives.

use std::{sync::Arc, time::Duration};

use super::Database;
use super::rebuild::QUIET;
use super::timers::{DueTimer, Timeout};
use crate::{
    Action, Direction, Event, Keepalive, Lifecycle, Moment, PolicyEntry, Sa,
    sa::keepalive::{self, KeepaliveAction},
};

/// Repeats the soft-limit event of a policy after this (`XFRM_KM_TIMEOUT`).
const POLICY_REMINDER: Duration = Duration::from_secs(30);
/// How often a device's counters are checked against limits without an event, which may get lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Database {
    /// When to call [`Database::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timeout> {
        self.timers.first()
    }

    /// Applies time limits: reports soft ones, reports hard ones and removes what reached them.
    /// Prepares the keepalives that are due.
    ///
    /// ```
    /// use uxfrm_crypto::{Backend, KeyMaterial};
    /// use uxfrm_engine::{
    ///     Database, Event, LifetimeLimits, Moment, SaConfig, SaTransform, SoftHardLimit, Spi,
    /// };
    ///
    /// let mut database = Database::new(Backend::Auto, 1);
    /// let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// let (from, to) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// let state = SaConfig::esp_tunnel(from, to, Spi(0x1001), keys);
    /// let added_seconds = SoftHardLimit { soft: 50, hard: 60 };
    /// let limits = LifetimeLimits { added_seconds, ..LifetimeLimits::default() };
    /// let state = SaConfig { limits, ..state };
    /// let id = state.id;
    /// database.apply(Moment::from_secs(0), |change| change.add_sa(state))?;
    ///
    /// let mut events = Vec::new();
    /// while let Some(timeout) = database.poll_timeout() {
    ///     database.handle_timeout(timeout.at, &mut events);
    /// }
    /// assert_eq!(events, [Event::SaSoftLimit(id), Event::SaHardLimit(id)]);
    /// assert!(database.snapshot().sad.is_empty());
    /// # Ok::<(), uxfrm_engine::Error>(())
    /// ```
    pub fn handle_timeout(&mut self, now: Moment, events: &mut Vec<Event>) {
        let mut removed = false;
        while let Some(woken) = self.timers.take_due(now) {
            removed |= match woken {
                DueTimer::Sa(sa) => self.age_sa(&sa, now, events),
                DueTimer::Limits(sa) => self.next.sad.holds(&sa) && self.check_limits(&sa, events),
                DueTimer::Nat(sa) => {
                    self.keep_alive(&sa, now);
                    false
                }
                DueTimer::Policy(entry) => self.age_policy(&entry, now, events),
                DueTimer::Release => {
                    self.release_old(now);
                    false
                }
                DueTimer::Revision => {
                    if self.rebuild_state.wake(self.next.spd.len()) {
                        self.timers.wake_rebuild(now.plus(QUIET));
                    }
                    false
                }
            };
        }
        if removed {
            self.advance();
            self.schedule_release(now);
        }
    }

    /// The keepalives to send; each is returned once.
    pub fn take_keepalives(&mut self) -> impl Iterator<Item = Keepalive> {
        self.keepalives.drain(..)
    }

    /// To be called with every event of a worker, before it is passed on: removes states past their
    /// hard limit.
    pub fn observe(&mut self, event: &Event) {
        let Event::SaHardLimit(id) = event else { return };
        let expired = |sa: &&Arc<Sa>| sa.lifecycle() == Lifecycle::Expired;
        let all: Vec<_> = self.next.sad.with_id(*id).filter(expired).cloned().collect();
        if all.is_empty() {
            return;
        }
        all.iter().for_each(|sa| self.remove_sa(sa));
        self.advance();
        self.release_sas();
    }

    /// Sends keepalives for a state, now and in future. Those of a replaced generation end here:
    /// the new one has its own timer.
    pub(super) fn keep_alive(&mut self, sa: &Arc<Sa>, now: Moment) {
        if !self.next.sad.holds(sa) {
            return;
        }
        let again = match keepalive::turn(sa, now) {
            None => return,
            Some(KeepaliveAction::Wait(again)) => again,
            Some(KeepaliveAction::Send(keepalive, again)) => {
                self.keepalives.push(keepalive);
                again
            }
        };
        self.timers.wake_nat(again, sa);
    }

    /// Returns true if the state is removed.
    fn age_sa(&mut self, sa: &Arc<Sa>, now: Moment, events: &mut Vec<Event>) -> bool {
        if !self.next.sad.holds(sa) {
            return false;
        }
        if sa.device_counts() && self.check_device_limits(sa, events) {
            return true;
        }
        let age = sa.config().limits.age(sa.added(), sa.usage().first_used(), now);
        if age.hard {
            // Unless a worker was first, and reported it.
            if sa.advance(Lifecycle::Expired) {
                events.push(Event::SaHardLimit(sa.id()));
            }
            self.remove_sa(sa);
            return true;
        }
        if age.soft && sa.advance(Lifecycle::Dying) {
            events.push(Event::SaSoftLimit(sa.id()));
        }
        let look = sa.has_device_limits().then(|| now.plus(LOOK_AGAIN));
        if let Some(next) = age.next.into_iter().chain(look).min() {
            self.timers.wake_sa(next, sa);
        }
        false
    }

    /// Returns true if the policy is removed. Its use limits run from its *last* use, and its
    /// soft-limit event is repeated, as in `net/xfrm/xfrm_policy.c: xfrm_policy_timer`.
    fn age_policy(
        &mut self,
        entry: &Arc<PolicyEntry>,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> bool {
        if !self.policy_store.holds(entry) {
            return false;
        }
        let age = entry.limits().age(entry.added(), last_use(entry), now);
        if age.hard {
            events.push(Event::PolicyHardLimit(Arc::clone(entry)));
            self.remove_policy(entry);
            return true;
        }
        if age.soft {
            events.push(Event::PolicySoftLimit(Arc::clone(entry)));
        }
        let reminder = age.soft.then(|| now.plus(POLICY_REMINDER));
        if let Some(next) = age.next.into_iter().chain(reminder).min() {
            self.timers.wake_policy(next, entry);
        }
        false
    }

    pub(super) fn wake_for(&mut self, sa: &Arc<Sa>, now: Moment) {
        let age = sa.config().limits.age(sa.added(), sa.usage().first_used(), now);
        // An update may set a limit that has passed.
        let at = if age.hard || age.soft { Some(now) } else { age.next };
        let look = sa.has_device_limits().then(|| now.plus(LOOK_AGAIN));
        let at = at.into_iter().chain(look).min();
        if let Some(at) = at {
            self.timers.wake_sa(at, sa);
        }
    }

    pub(super) fn wake_for_policy(&mut self, entry: &Arc<PolicyEntry>, now: Moment) {
        if let Some(at) = entry.limits().age(now, None, now).next {
            self.timers.wake_policy(at, entry);
        }
    }
}

/// Start of a policy's use limits: its last use, or before the first one its insertion, as in
/// `net/xfrm/xfrm_policy.c: xfrm_policy_timer`. Only policies that protect or block outbound
/// traffic see each use: plain inbound packets bypass uxfrm through the host's packet filter, and a
/// policy that is hit all the time must not expire. So others wait for the first use.
fn last_use(entry: &PolicyEntry) -> Option<Moment> {
    let protects_or_blocks = entry.action() == Action::Block || entry.templates().len() > 0;
    let is_told = entry.direction() == Direction::Out && protects_or_blocks;
    entry.last_used().or_else(|| is_told.then(|| entry.added()))
}
