//! `policy { add | update }`: the whole of a policy.

use uxfrm_engine::{
    Action, Direction, Family, IfId, Limits, MAX_TEMPLATES, Mark, Offload, OffloadKind, Policy,
    PolicyFlags, PolicyIndex, PolicyKind, Priority,
};

use super::{NO_DIRECTION, TWO_SELECTORS};
use crate::batch::{
    cursor::{Cursor, Fault},
    flags,
    keyword::{
        ACTIONS, DEVICE, OFFLOADS, POLICY, POLICY_DIRECTIONS, POLICY_FLAGS, POLICY_KINDS,
        PolicyWord, SELECTOR, UPPER, words_of,
    },
    limit, mark,
    selector::{self, SelectorFilter},
    template::{self, TemplateWords},
    words::Word,
};

/// The words of a policy so far.
#[derive(Default)]
struct PolicyWords {
    direction: Option<Direction>,
    kind: Option<PolicyKind>,
    index: PolicyIndex,
    selector: Option<SelectorFilter>,
    priority: Priority,
    action: Action,
    templates: Vec<TemplateWords>,
    mark: Mark,
    if_id: IfId,
    flags: PolicyFlags,
    limits: Limits,
    has_context: bool,
    offload_device: Option<String>,
}

/// Behind `add` or `update` (`ip/xfrm_policy.c: xfrm_policy_modify`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Box<Policy>, Fault> {
    let preferred = cursor.family;
    let mut policy = PolicyWords::default();
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&POLICY) {
            Some(keyword) => policy.parse(keyword, word, cursor)?,
            None if policy.selector.is_some() && selector::begins(cursor) => {
                return Err(cursor.misplaced(word, TWO_SELECTORS));
            }
            None if selector::begins(cursor) => {
                // A template before it has set its own.
                cursor.family = preferred;
                let selector = selector::parse(cursor)?;
                cursor.family = selector.family;
                policy.selector = Some(selector);
            }
            None if policy.selector.is_none() => {
                return Err(cursor.unknown(&words_of!(SELECTOR, UPPER, POLICY)));
            }
            None => return Err(cursor.unknown(&POLICY.words())),
        }
    }
    policy.policy(preferred, cursor).map(Box::new)
}

impl PolicyWords {
    /// The value of `keyword`, which stands in `word`.
    fn parse(
        &mut self,
        keyword: PolicyWord,
        word: &Word<'_>,
        cursor: &mut Cursor<'_, '_>,
    ) -> Result<(), Fault> {
        match keyword {
            PolicyWord::Direction if self.direction.is_some() => {
                return Err(cursor.duplicate("dir", word));
            }
            PolicyWord::Direction => self.direction = Some(cursor.choice(&POLICY_DIRECTIONS)?),
            PolicyWord::Context if self.has_context => return Err(cursor.duplicate("ctx", word)),
            // Taken and not kept, as by a kernel without a security module.
            PolicyWord::Context => {
                cursor.value()?;
                self.has_context = true;
            }
            PolicyWord::Mark => self.mark = mark::parse(cursor)?,
            PolicyWord::Index => self.index = PolicyIndex(cursor.number()?),
            PolicyWord::Kind if self.kind.is_some() => return Err(cursor.duplicate("ptype", word)),
            PolicyWord::Kind => self.kind = Some(cursor.choice(&POLICY_KINDS)?),
            PolicyWord::Action => self.action = cursor.choice(&ACTIONS)?,
            PolicyWord::Priority => self.priority = Priority(cursor.number()?),
            PolicyWord::Flag => self.flags |= flags::parse(cursor, &POLICY_FLAGS)?,
            PolicyWord::Limit => limit::parse(cursor, &mut self.limits)?,
            PolicyWord::Template if self.templates.len() == MAX_TEMPLATES => {
                let rule = format!("Too many tmpls: {MAX_TEMPLATES} at the most");
                return Err(cursor.refuse(rule));
            }
            PolicyWord::Template => self.templates.push(template::parse(cursor)?),
            PolicyWord::IfId => self.if_id = IfId(cursor.number()?),
            PolicyWord::Offload => self.offload_device = Some(parse_offload(cursor)?),
        }
        Ok(())
    }

    /// What the words say together.
    fn policy(self, preferred: Option<Family>, cursor: &Cursor<'_, '_>) -> Result<Policy, Fault> {
        let direction = self.direction.ok_or_else(|| cursor.refuse(NO_DIRECTION))?;
        let selector = self.selector.unwrap_or_default();
        let selector = selector.selector(preferred.unwrap_or(Family::V4));
        let templates = self.templates.iter();
        let templates = templates.map(|template| template.template(cursor, selector.family()));
        Ok(Policy {
            direction,
            kind: self.kind.unwrap_or_default(),
            index: self.index,
            selector,
            priority: self.priority,
            action: self.action,
            templates: templates.collect::<Result<_, _>>()?,
            mark: self.mark,
            if_id: self.if_id,
            flags: self.flags,
            limits: self.limits,
            offload: self.offload_device.map(|device| Offload {
                kind: OffloadKind::Packet,
                device,
                direction,
            }),
        })
    }
}

/// Behind `offload`: `packet dev DEV`; the direction is the policy's.
fn parse_offload(cursor: &mut Cursor<'_, '_>) -> Result<String, Fault> {
    let Some(word) = cursor.peek() else { return Err(cursor.unknown(&["packet"])) };
    match cursor.keyword(&OFFLOADS) {
        Some(OffloadKind::Packet) => {}
        Some(OffloadKind::Crypto) | None => {
            return Err(
                cursor.misplaced(word, "Invalid offload mode; policies know \"packet\" only")
            );
        }
    }
    cursor.exactly(&DEVICE)?;
    Ok(cursor.value()?.text().to_owned())
}
