//! One change of a state or a policy by a reload.

use uxfrm_engine::{
    DefaultActions, Error, Mark, Policy, PolicyKey, PolicyName, SaConfig, SaId, Transaction,
};

#[derive(Debug)]
pub(super) enum Step {
    State(States),
    Policy(Policies),
    Defaults(DefaultActions),
}

/// What becomes of a state.
#[derive(Debug)]
pub(super) enum States {
    Add(SaConfig),
    /// It goes on, with its numbers and counts.
    Update(SaConfig),
    /// The same with what no update changes: another takes its place, with the same key, window,
    /// numbers and counts.
    Continue(SaConfig),
    /// Another of its id, with a new key.
    Replace(SaConfig),
    Remove(SaId, Mark),
}

/// What becomes of a policy.
#[derive(Debug)]
pub(super) enum Policies {
    Add(Policy),
    /// Where it stands.
    Update(Policy),
    /// It stands elsewhere among those that may be for the same packets.
    Move(Policy),
    Remove(Policy),
}

impl Step {
    pub(super) fn carry_out(self, change: &mut Transaction<'_>) -> Result<(), Error> {
        match self {
            Self::State(state) => state.carry_out(change),
            Self::Policy(policy) => policy.carry_out(change),
            Self::Defaults(defaults) => {
                change.set_defaults(defaults);
                Ok(())
            }
        }
    }
}

impl States {
    fn carry_out(self, change: &mut Transaction<'_>) -> Result<(), Error> {
        match self {
            Self::Add(config) => change.add_sa(config).map(drop),
            Self::Update(config) => change.update_sa(config).map(drop),
            Self::Continue(config) => change.continue_sa(config).map(drop),
            Self::Replace(config) => {
                change.delete_sa(config.id, config.mark)?;
                change.add_sa(config).map(drop)
            }
            Self::Remove(id, mark) => change.delete_sa(id, mark).map(drop),
        }
    }
}

impl Policies {
    fn carry_out(self, change: &mut Transaction<'_>) -> Result<(), Error> {
        match self {
            Self::Add(policy) => change.add_policy(policy).map(drop),
            Self::Update(policy) => change.update_policy(policy).map(drop),
            Self::Move(policy) => {
                change.delete_policy(&name(&policy))?;
                change.add_policy(policy).map(drop)
            }
            Self::Remove(policy) => change.delete_policy(&name(&policy)).map(drop),
        }
    }
}

/// The name of a policy by its selector, which no other of its direction, kind, mark and interface
/// has.
fn name(policy: &Policy) -> PolicyKey {
    let Policy { direction, kind, mark, if_id, selector, .. } = *policy;
    PolicyKey { direction, kind, mark, if_id, name: PolicyName::Selector(selector) }
}
