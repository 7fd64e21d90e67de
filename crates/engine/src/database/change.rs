//! Changes: the kernel's messages, one function each.

use std::sync::Arc;

use uxfrm_crypto::SaKey;

use super::Database;
use super::devices::DevicePlace;
use crate::sa::validate;
use crate::spd::policy::{PolicyKey, PolicyName};
use crate::{
    Action, Attachment, Counters, DefaultActions, Error, Lifecycle, Mark, Moment, Policy,
    PolicyEntry, PolicyKind, Sa, SaConfig, SaId, SaMove, SaProgress, SaProtocol, SaTransform,
    SharedSaConfig,
};

/// A change under way: workers see all of it at once when [`Database::apply`] returns.
#[derive(Debug)]
pub struct Transaction<'a> {
    pub(super) database: &'a mut Database,
    pub(super) now: Moment,
    pub(super) changed: bool,
}

/// A state, its new configuration, and its attachment.
type MigratedSa = (Arc<Sa>, SaConfig, Option<Attachment>);

impl Transaction<'_> {
    /// `ip xfrm state add` (`XFRM_MSG_NEWSA`). A state without selector gets its own family's,
    /// unless it has `af-unspec`.
    ///
    /// # Errors
    /// See [`Error`] for states; [`Error::Exists`] when destination, SPI, protocol and mark find
    /// one.
    pub fn add_sa(&mut self, config: SaConfig) -> Result<Arc<Sa>, Error> {
        let mut config = self.checked(config)?;
        let place = self.database.attach_state(&mut config)?;
        if self.find_sa(config.id, config.mark).is_some() {
            self.database.detach_state(place);
            return Err(Error::Exists);
        }
        let sa = Sa::new(&config, self.words(&config), self.now).on(place);
        self.database.insert_sa(&sa);
        self.changed = true;
        self.database.wake_for(&sa, self.now);
        self.database.keep_alive(&sa, self.now);
        Ok(sa)
    }

    /// `ip xfrm state update` (`XFRM_MSG_UPDSA`). Ports of an encapsulation, care-of address,
    /// limits, output mark and if_id change; keys, numbers and counters do not
    /// (`net/xfrm/xfrm_state.c: xfrm_state_update`).
    ///
    /// # Errors
    /// See [`Error`] for states; [`Error::NoSuchState`] without such a state or with another
    /// direction; [`Error::Update`] for another encapsulation type and for a state that has
    /// expired.
    pub fn update_sa(&mut self, config: SaConfig) -> Result<Arc<Sa>, Error> {
        let mut config = self.checked(config)?;
        // The device may refuse it, but its old state continues: the new one is never opened.
        let place = self.database.attach_state(&mut config)?;
        self.database.detach_state(place);
        let old = self.find_sa(config.id, config.mark).cloned().ok_or(Error::NoSuchState)?;
        if old.config().direction != config.direction {
            return Err(Error::NoSuchState);
        }
        let same_encap =
            old.config().encap.map(|encap| encap.kind) == config.encap.map(|encap| encap.kind);
        if !same_encap || old.lifecycle() > Lifecycle::Dying {
            return Err(Error::Update);
        }
        self.database.update_counts(&old);
        let words = self.database.interner.share(old.config().updated(&config));
        let new = old.renewed(words);
        new.revive();
        self.database.replace_sa(&old, &new);
        self.database.tracking.update_sa(&old, &new);
        self.database.update_on_device(&new, &config);
        self.changed = true;
        self.database.wake_for(&new, self.now);
        self.database.keep_alive(&new, self.now);
        if new.usage().first_used().is_some() {
            self.database.timers.wake_limits(self.now, &new);
        }
        Ok(new)
    }

    /// `XFRM_MSG_NEWAE`: lets a state continue from another's counters. What workers count
    /// meanwhile is added.
    ///
    /// # Errors
    /// [`Error::NoSuchState`]; [`Error::NumbersBack`] for numbers below those sent or received;
    /// [`Error::SequenceWithoutEsn`].
    pub fn set_counters(
        &mut self,
        id: SaId,
        mark: Mark,
        counters: Counters,
    ) -> Result<Arc<Sa>, Error> {
        let sa = self.find_sa(id, mark).cloned().ok_or(Error::NoSuchState)?;
        self.database.update_counts(&sa);
        let last = sa.config().last_number();
        if counters.sent.is_some_and(|sent| sent > last) {
            return Err(Error::SequenceWithoutEsn);
        }
        let back = |new: Option<u64>, now: u64| new.is_some_and(|new| new < now);
        if back(counters.sent, sa.sequence().last())
            || back(counters.received, sa.highest_received())
        {
            return Err(Error::NumbersBack);
        }
        let carried = counters.usage.is_some();
        sa.set_counters(counters, self.now);
        let position = sa.progress();
        let carried = position.carried.filter(|_| carried);
        self.database.move_on_device(&sa, &SaProgress { carried, ..position });
        self.database.wake_for(&sa, self.now);
        Ok(sa)
    }

    /// Replaces the state that destination, SPI, protocol and mark find by one with the same keys,
    /// for changes that an update cannot make. It continues where the old one ends: what was
    /// received under the keys is never accepted again, and numbers, IV prefixes and counters
    /// continue.
    ///
    /// # Errors
    /// [`Error::NoSuchState`]; see [`Error`] for states. If a device refuses the new state, the old
    /// one is gone too.
    pub fn continue_sa(&mut self, config: SaConfig) -> Result<Arc<Sa>, Error> {
        let mut config = self.checked(config)?;
        let old = self.find_sa(config.id, config.mark).cloned().ok_or(Error::NoSuchState)?;
        self.changed = true;
        // Before the device is asked: it may have room for one of them only.
        self.database.close_on_device(&old);
        let place =
            self.database.attach_state(&mut config).inspect_err(|_| self.database.drop_sa(&old))?;
        let words = self.words(&config);
        let new = Sa::continuing(&old, config, words, place);
        new.revive();
        self.take_place(&old, &new);
        Ok(new)
    }

    /// Migrates states to new addresses and settings (`XFRM_MSG_MIGRATE`, `XFRM_MSG_MIGRATE_STATE`;
    /// `net/xfrm/xfrm_state.c: xfrm_state_migrate`). Numbers continue above those sent, received
    /// numbers stay received, counters continue. The old state sends and accepts nothing more:
    /// packets that workers still hold for it are dropped. Returns the new states.
    ///
    /// # Errors
    /// All or nothing: [`Error::NoSuchState`]; [`Error::Exists`] where a state is already; see
    /// [`Error`] for states.
    pub fn move_sas(&mut self, states: Vec<(Arc<Sa>, SaMove)>) -> Result<Vec<Arc<Sa>>, Error> {
        let going: Vec<_> = states.iter().map(|(old, _)| (old.id(), old.config().mark)).collect();
        let goes = |id, mark: Mark| going.contains(&(id, mark));
        let mut moved: Vec<(Arc<Sa>, SaConfig)> = Vec::new();
        for (old, to) in states {
            let config = self.verified(old.to_config().moved(to))?;
            let (id, mark) = (config.id, config.mark);
            if !self.database.next.sad.holds(&old) {
                return Err(Error::NoSuchState);
            }
            let taken = self.find_sa(id, mark).is_some_and(|sa| !goes(sa.id(), sa.config().mark));
            let twice = moved.iter().any(|(_, other)| (other.id, other.mark) == (id, mark));
            if taken || twice {
                return Err(Error::Exists);
            }
            moved.push((old, config));
        }
        let moved = self.reattach(moved)?;
        self.changed |= !moved.is_empty();
        let settled =
            moved.into_iter().map(|(old, config, place)| self.settle(&old, config, place));
        Ok(settled.collect())
    }

    /// Attaches migrated states to their devices: all or none.
    fn reattach(&mut self, moved: Vec<(Arc<Sa>, SaConfig)>) -> Result<Vec<MigratedSa>, Error> {
        let mut seated = Vec::new();
        for (old, mut config) in moved {
            match self.database.attach_state(&mut config) {
                Ok(place) => seated.push((old, config, place)),
                Err(error) => {
                    seated.into_iter().for_each(|(.., place)| self.database.detach_state(place));
                    return Err(error);
                }
            }
        }
        Ok(seated)
    }

    /// Replaces a state. Its device must be done with it before its progress is read.
    fn settle(&mut self, old: &Arc<Sa>, config: SaConfig, place: Option<Attachment>) -> Arc<Sa> {
        let words = self.words(&config);
        self.database.close_on_device(old);
        let new = Sa::continuing(old, config, words, place);
        self.take_place(old, &new);
        new
    }

    fn take_place(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        self.database.drop_sa(old);
        self.database.insert_sa(new);
        self.database.wake_for(new, self.now);
        self.database.keep_alive(new, self.now);
    }

    /// Replaces every state by one with the same configuration, counters and window, whose numbers
    /// continue with IV prefixes still to be drawn: for an owner whose machine continues from a
    /// snapshot, perhaps as one of several. The old ones send and accept nothing more. Returns how
    /// many states were lost because a device refused the new one.
    pub fn begin_sas_anew(&mut self) -> usize {
        let mut states: Vec<_> = self.states().cloned().collect();
        states.sort_unstable_by_key(|sa| sa.insertion_seq());
        let mut lost = 0;
        for old in &states {
            let mut config = old.to_config();
            self.database.close_on_device(old);
            let place = match old.attachment() {
                Some(_) => self.database.attach_state(&mut config),
                None => Ok(None),
            };
            let Ok(place) = place else {
                self.database.drop_sa(old);
                lost += 1;
                continue;
            };
            let words = self.words(&config);
            let new = Sa::begun_anew(old, config, words, place);
            self.take_place(old, &new);
        }
        self.changed |= !states.is_empty();
        lost
    }

    /// The state that `id` and a mark find, as for `ip xfrm state get`.
    #[must_use]
    pub fn find_sa(&self, id: SaId, mark: Mark) -> Option<&Arc<Sa>> {
        self.database.next.sad.find(id, mark.value & mark.mask)
    }

    /// `ip xfrm state delete` (`XFRM_MSG_DELSA`). Batches in flight still use it.
    ///
    /// # Errors
    /// [`Error::NoSuchState`].
    /// ```
    /// use uxfrm_crypto::{Backend, KeyMaterial};
    /// use uxfrm_engine::{Database, Mark, Moment, SaConfig, SaTransform, Spi};
    ///
    /// let mut database = Database::new(Backend::Auto, 1);
    /// let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// let (from, to) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// database.apply(Moment(0), |change| {
    ///     let sa = change.add_sa(SaConfig::esp_tunnel(from, to, Spi(0x1001), keys))?;
    ///     change.delete_sa(sa.id(), Mark::default())
    /// })?;
    /// # Ok::<(), uxfrm_engine::Error>(())
    /// ```
    ///
    pub fn delete_sa(&mut self, id: SaId, mark: Mark) -> Result<Arc<Sa>, Error> {
        let sa = self.find_sa(id, mark).cloned().ok_or(Error::NoSuchState)?;
        self.database.remove_sa(&sa);
        self.changed = true;
        Ok(sa)
    }

    /// Restores a removed or replaced state, for an owner who undoes a change that could not be
    /// stored. It may still hand out what was reserved for it. An offloaded one is attached again.
    /// Returns the current state.
    ///
    /// # Errors
    /// [`Error::Exists`] where a state is by now; [`Error::NoSuchState`] for one that has ended; a
    /// device's refusal.
    pub fn restore_sa(&mut self, sa: &Arc<Sa>) -> Result<Arc<Sa>, Error> {
        if self.find_sa(sa.id(), sa.config().mark).is_some() {
            return Err(Error::Exists);
        }
        if sa.sequence().is_closed() && sa.ended_at().is_none() {
            return Err(Error::NoSuchState);
        }
        let place = match sa.attachment() {
            Some(_) => self.database.attach_state(&mut sa.to_config())?,
            None => None,
        };
        let back = match (Sa::returning(sa, place), sa.attachment()) {
            (Some(back), _) => back,
            (None, Some(before)) => {
                self.database.recover_numbers(sa, before);
                sa.renewed(sa.shared_words()).on(place)
            }
            (None, None) => Arc::clone(sa),
        };
        let reserved = back.sequence().reserved();
        self.database.insert_sa(&back);
        back.sequence().reserve(reserved);
        self.changed = true;
        self.database.wake_for(&back, self.now);
        self.database.keep_alive(&back, self.now);
        Ok(back)
    }

    /// Restores the configuration before an update, for an owner who undoes a change that could not
    /// be stored.
    ///
    /// # Errors
    /// [`Error::NoSuchState`] when it is gone.
    pub fn restore_words(&mut self, old: &Arc<Sa>) -> Result<(), Error> {
        let now = self.find_sa(old.id(), old.config().mark).cloned();
        let now = now.filter(|now| now.is_same(old)).ok_or(Error::NoSuchState)?;
        let new = now.renewed(old.shared_words());
        self.database.replace_sa(&now, &new);
        self.database.update_on_device(&new, &new.to_config());
        self.changed = true;
        self.database.wake_for(&new, self.now);
        self.database.keep_alive(&new, self.now);
        Ok(())
    }

    /// All states, with the changes so far.
    pub fn states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.database.next.sad.iter()
    }

    /// `ip xfrm state flush` (`XFRM_MSG_FLUSHSA`) of one protocol or [`SaProtocol::Any`]. Returns
    /// how many were removed.
    pub fn flush_sas(&mut self, protocol: SaProtocol) -> usize {
        let meant = |sa: &&Arc<Sa>| protocol == SaProtocol::Any || sa.id().protocol == protocol;
        let all: Vec<_> = self.states().filter(meant).cloned().collect();
        all.iter().for_each(|sa| self.database.remove_sa(sa));
        self.changed |= !all.is_empty();
        all.len()
    }

    /// `ip xfrm policy add` (`XFRM_MSG_NEWPOLICY`).
    ///
    /// # Errors
    /// See [`Error`] for policies; [`Error::Exists`] when direction, kind, selector, mark and if_id
    /// are those of another.
    pub fn add_policy(&mut self, policy: Policy) -> Result<Arc<PolicyEntry>, Error> {
        let policy = Policy { mark: policy.mark.sanitized(), ..policy };
        self.database.senses.check_policy(&policy)?;
        let seat = self.database.attach_policy(&policy)?;
        let entry = match self.add_or_replace(&policy, seat) {
            Ok(entry) => entry,
            Err(error) => {
                self.database.detach_policy(seat);
                return Err(error);
            }
        };
        self.database.seat(entry.index(), seat);
        self.database.link_policy(&entry);
        self.changed = true;
        self.database.wake_for_policy(&entry, self.now);
        Ok(entry)
    }

    /// A stand-in makes room for any policy of its name.
    fn add_or_replace(
        &mut self,
        policy: &Policy,
        seat: DevicePlace,
    ) -> Result<Arc<PolicyEntry>, Error> {
        let device = seat.map(|(device, _)| device);
        match self.database.policy_store.add(policy, device, self.now) {
            Err(Error::Exists) => {}
            other => return other,
        }
        let key = PolicyKey {
            direction: policy.direction,
            kind: policy.kind,
            mark: policy.mark,
            if_id: policy.if_id,
            name: PolicyName::Selector(policy.selector),
        };
        let stands_in =
            |entry: &&Arc<PolicyEntry>| entry.is_held() || self.database.is_stand_in(entry);
        let Some(old) = self.database.policy_store.find(&key).filter(stands_in).cloned() else {
            return Err(Error::Exists);
        };
        self.database.remove_policy(&old);
        self.database.policy_store.add(policy, device, self.now)
    }

    /// Restores a removed policy in its old order, with its counters.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is another of its name by now.
    pub fn restore_policy(&mut self, entry: &PolicyEntry) -> Result<Arc<PolicyEntry>, Error> {
        let seat = match self.database.attach_policy(&entry.policy()) {
            // It was a stand-in for an offloaded policy, which the device still refuses.
            Err(_) if entry.action() == Action::Block => None,
            other => other?,
        };
        let restored = match self.database.policy_store.restore(entry) {
            Ok(restored) => restored,
            Err(error) => {
                self.database.detach_policy(seat);
                return Err(error);
            }
        };
        self.database.seat(restored.index(), seat);
        self.database.link_policy(&restored);
        self.changed = true;
        self.database.wake_for_policy(&restored, self.now);
        Ok(restored)
    }

    /// `ip xfrm policy update` (`XFRM_MSG_UPDPOLICY`): adds, or replaces the one with the same key,
    /// with its index.
    ///
    /// # Errors
    /// See [`Error`] for policies.
    pub fn update_policy(&mut self, policy: Policy) -> Result<Arc<PolicyEntry>, Error> {
        let policy = Policy { mark: policy.mark.sanitized(), ..policy };
        self.database.senses.check_policy(&policy)?;
        let seat = self.database.attach_policy(&policy)?;
        let device = seat.map(|(device, _)| device);
        let (entry, old) = match self.database.policy_store.update(&policy, device, self.now) {
            Ok(both) => both,
            Err(error) => {
                self.database.detach_policy(seat);
                return Err(error);
            }
        };
        self.database.seat(entry.index(), seat);
        if let Some(old) = &old {
            self.database.unlink_policy(old);
        }
        self.database.link_policy(&entry);
        self.changed = true;
        self.database.wake_for_policy(&entry, self.now);
        Ok(entry)
    }

    /// The policy of a key, as for `ip xfrm policy get`.
    #[must_use]
    pub fn find_policy(&self, key: &PolicyKey) -> Option<&Arc<PolicyEntry>> {
        self.database.policy_store.find(key)
    }

    /// All policies, with the changes so far, in no order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.database.policy_store.iter()
    }

    /// `ip xfrm policy delete` (`XFRM_MSG_DELPOLICY`).
    ///
    /// # Errors
    /// [`Error::NoSuchPolicy`].
    pub fn delete_policy(&mut self, key: &PolicyKey) -> Result<Arc<PolicyEntry>, Error> {
        let entry = self.database.policy_store.find(key).cloned().ok_or(Error::NoSuchPolicy)?;
        self.database.remove_policy(&entry);
        self.changed = true;
        Ok(entry)
    }

    /// `ip xfrm policy flush` (`XFRM_MSG_FLUSHPOLICY`). Returns how many were removed.
    pub fn flush_policies(&mut self, kind: PolicyKind) -> usize {
        let all: Vec<_> = self.policies().filter(|entry| entry.kind() == kind).cloned().collect();
        all.iter().for_each(|entry| self.database.remove_policy(entry));
        self.changed |= !all.is_empty();
        all.len()
    }

    /// Default actions, with the changes so far.
    #[must_use]
    pub fn defaults(&self) -> DefaultActions {
        self.database.next.spd.defaults()
    }

    /// `ip xfrm policy setdefault` (`XFRM_MSG_SETDEFAULT`).
    pub fn set_defaults(&mut self, defaults: DefaultActions) {
        if self.defaults() == defaults {
            return;
        }
        let Database { next, policy_buffer, .. } = &mut *self.database;
        policy_buffer.part(&mut next.spd).set_defaults(defaults);
        self.database.tracking.set_defaults();
        self.changed = true;
    }

    fn checked(&self, mut config: SaConfig) -> Result<SaConfig, Error> {
        validate::complete(&mut config);
        self.verified(config)
    }

    fn verified(&self, config: SaConfig) -> Result<SaConfig, Error> {
        let config = SaConfig { mark: config.mark.sanitized(), ..config };
        validate::verify(&config)?;
        let SaTransform { transform, encryption_key, authentication_key } = &config.transform;
        SaKey::verify(transform, encryption_key, authentication_key, self.database.backend)?;
        self.database.senses.check_state(&config)?;
        Ok(config)
    }

    fn words(&mut self, config: &SaConfig) -> Arc<SharedSaConfig> {
        let Database { interner, backend, keeper, .. } = &mut *self.database;
        interner.share(SharedSaConfig {
            keeper: keeper.clone(),
            ..SharedSaConfig::of(config, *backend)
        })
    }
}
