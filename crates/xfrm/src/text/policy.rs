//! Policies (`ip/ipxfrm.c: xfrm_policy_info_print`, `ip/xfrm_policy.c: xfrm_policy_print`).

use uxfrm_netlink::{
    AttributeType,
    client::{RawPolicy, RawPolicyType, ReplyAttributes},
};

use super::{WipedText, attributes::OffloadDirection};
use crate::{
    answer::ShownPolicy,
    names::{self, POLICY_FLAGS},
};

/// Directions from here on are those of sockets' policies.
pub(crate) const SOCKET: u8 = 3;

impl WipedText<'_> {
    pub(super) fn policy(&mut self, policy: &ShownPolicy<'_>) {
        self.change(policy.change);
        self.policy_info(&policy.info, &policy.found, "", "");
        self.hard(policy.change);
        self.end_answer();
    }

    /// `title` is before the first line, `indent` before the others.
    pub(super) fn policy_info(
        &mut self,
        info: &RawPolicy,
        found: &ReplyAttributes<'_>,
        indent: &str,
        title: &str,
    ) {
        self.selector(&info.selector, 0, title);
        self.security_context(found);
        let prefix = format!("{indent}\t");
        self.raw(&prefix);
        let (kind, number) = match info.direction.checked_sub(SOCKET) {
            Some(number) => ("socket", number),
            None => ("dir", info.direction),
        };
        self.put(format_args!("{kind} {} ", names::direction(number)));
        self.action(info.action);
        if self.shows_statistics() {
            self.put(format_args!("index {} ", info.index));
        }
        self.put(format_args!("priority {} ", info.priority));
        self.kind(found);
        self.share_and_flags(info);
        self.end_line();
        if self.shows_statistics() {
            self.lifetimes(&info.limits, &info.usage, &prefix);
        }
        self.attributes(found, info.selector.family, &prefix, OffloadDirection::Policys);
    }

    /// `ptype …` where the attribute is there.
    pub(super) fn kind(&mut self, found: &ReplyAttributes<'_>) {
        if found.value(AttributeType::PolicyType).is_none() {
            return;
        }
        self.raw("ptype ");
        match found.read::<RawPolicyType>(AttributeType::PolicyType) {
            Some(raw) => self.put(format_args!("{} ", names::policy_kind(raw.kind))),
            None => self.truncated(),
        }
    }

    fn action(&mut self, action: u8) {
        match action {
            0 if self.shows_statistics() => self.raw("action allow "),
            0 => {}
            1 => self.raw("action block "),
            number => self.put(format_args!("action {number} ")),
        }
    }

    fn share_and_flags(&mut self, info: &RawPolicy) {
        if self.shows_statistics() {
            self.put(format_args!("share {} ", names::share(info.share)));
        }
        if self.shows_statistics() || info.flags != 0 {
            self.raw("flag ");
            self.flags(info.flags.into(), POLICY_FLAGS);
        }
        if self.shows_statistics() {
            self.put(format_args!(" (0x{:08b})", info.flags));
        }
    }
}
