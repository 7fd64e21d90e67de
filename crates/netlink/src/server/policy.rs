//! Requests about policies.

use std::sync::Arc;

use uxfrm_engine::{PolicyEntry, PolicyFlags, PolicyKey};

use super::{Call, Server, client::Groups, notify};
use crate::{
    MessageType, NetlinkError,
    decode::{common, policy as decode},
    encode::policy::{self as encode, ByName},
    layout::{RawPolicy, RawPolicyExpire, RawPolicyId},
    refusal::number,
};

impl Server {
    /// NEWPOLICY and UPDPOLICY.
    pub(super) fn add_policy(
        &self,
        kind: MessageType,
        call: &mut Call<'_>,
    ) -> Result<(), NetlinkError> {
        let mut policy = decode::policy(&call.head::<RawPolicy>()?, &call.attributes)?;
        policy.flags.remove(PolicyFlags::HELD);
        let entry = call.database.apply(call.now, |change| {
            if kind == MessageType::NewPolicy {
                change.add_policy(policy)
            } else {
                change.update_policy(policy)
            }
        })?;
        call.tell(&self.clients, Groups::POLICY, kind, |datagram| {
            datagram.put(&encode::info(&entry, self.calendar));
            encode::attributes(datagram, &entry);
        });
        Ok(())
    }

    pub(super) fn delete_policy(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let id: RawPolicyId = call.head()?;
        let key = decode::key(&id, &call.attributes)?.ok_or(const { no_such_policy() })?;
        let entry = call.database.apply(call.now, |change| change.delete_policy(&key))?;
        let by = if id.index == 0 { ByName::Selector } else { ByName::Index };
        call.tell(&self.clients, Groups::POLICY, MessageType::DelPolicy, |datagram| {
            datagram.put(&encode::id(&entry, by));
            datagram.attribute(crate::AttributeType::Policy, &encode::info(&entry, self.calendar));
            encode::attributes(datagram, &entry);
        });
        Ok(())
    }

    /// GETPOLICY of one.
    pub(super) fn one_policy(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let key = decode::key(&call.head()?, &call.attributes)?;
        let entry = find(call, key)?;
        let mut datagram = call.answer(MessageType::NewPolicy);
        datagram.put(&encode::info(&entry, self.calendar));
        encode::attributes(&mut datagram, &entry);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// An empty flush is no error and is not notified.
    pub(super) fn flush_policies(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let kind = common::policy_kind(&call.attributes)?;
        if call.database.apply(call.now, |change| change.flush_policies(kind)) != 0 {
            call.tell(&self.clients, Groups::POLICY, MessageType::FlushPolicy, |datagram| {
                encode::put_kind(datagram, kind);
            });
        }
        Ok(())
    }

    /// POLEXPIRE from a client: notifies, and deletes on a hard limit.
    pub(super) fn expire_policy(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let raw: RawPolicyExpire = call.head()?;
        let id = RawPolicyId {
            selector: raw.policy.selector,
            index: raw.policy.index,
            direction: raw.policy.direction,
            pad: [0; 3],
        };
        let key = decode::key(&id, &call.attributes)?;
        let entry = find(call, key.clone())?;
        if raw.hard != 0 {
            let key = key.ok_or(const { no_such_policy() })?;
            call.database.apply(call.now, |change| change.delete_policy(&key))?;
        }
        let pid = call.message.header.pid;
        call.out.multicast(&self.clients, Groups::EXPIRE, || {
            notify::policy_expired(&entry, notify::Limit::of_byte(raw.hard), pid, self.calendar)
        });
        Ok(())
    }
}

fn find(call: &mut Call<'_>, key: Option<PolicyKey>) -> Result<Arc<PolicyEntry>, NetlinkError> {
    let found = key
        .and_then(|key| call.database.apply(call.now, |change| change.find_policy(&key).cloned()));
    found.ok_or(const { no_such_policy() })
}

const fn no_such_policy() -> NetlinkError {
    NetlinkError::bare(number::ENOENT)
}
