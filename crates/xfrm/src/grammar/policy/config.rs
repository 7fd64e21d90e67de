//! `policy { add | update }`: the whole of a policy.

use uxfrm_engine::{
    Action, Direction, Family, IfId, LifetimeLimits, MAX_TEMPLATES, Mark, OffloadKind, PolicyFlags,
    PolicyIndex, PolicyKind, Priority, Selector,
};

use super::{NO_DIRECTION, TWO_SELECTORS};
use crate::grammar::{
    cursor::{Cursor, SyntaxError},
    flags,
    keyword::{
        ACTIONS, DEVICE, OFFLOADS, POLICY, POLICY_DIRECTIONS, POLICY_FLAGS, POLICY_KINDS,
        PolicyWord, SELECTOR, UPPER, words_of,
    },
    lexer::Word,
    limit, mark,
    selector::{self, SelectorFilter},
    template::{self, TemplateArgs},
};

/// A policy as a line has it.
#[derive(Debug)]
pub struct PolicyArgs {
    /// `dir`
    pub direction: Direction,
    /// `ptype`; main if not named.
    pub kind: Option<PolicyKind>,
    /// `index`; 0 lets one be chosen.
    pub index: PolicyIndex,
    /// Which packets.
    pub selector: Selector,
    /// `priority`
    pub priority: Priority,
    /// `action`
    pub action: Action,
    /// `tmpl`
    pub templates: Vec<TemplateArgs>,
    /// `mark`; none with mask 0.
    pub mark: Mark,
    /// `if_id`
    pub if_id: Option<IfId>,
    /// `flag`
    pub flags: PolicyFlags,
    /// `limit`
    pub limits: LifetimeLimits,
    /// `ctx`
    pub context: Option<String>,
    /// `offload packet dev`
    pub offload_device: Option<String>,
}

/// The words so far.
#[derive(Default)]
struct Draft {
    direction: Option<Direction>,
    kind: Option<PolicyKind>,
    index: PolicyIndex,
    selector: Option<SelectorFilter>,
    priority: Priority,
    action: Action,
    templates: Vec<TemplateArgs>,
    mark: Mark,
    if_id: Option<IfId>,
    flags: PolicyFlags,
    limits: LifetimeLimits,
    context: Option<String>,
    offload_device: Option<String>,
}

/// Behind `add` or `update` (`ip/xfrm_policy.c: xfrm_policy_modify`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Box<PolicyArgs>, SyntaxError> {
    let preferred = cursor.family;
    let mut policy = Draft { limits: limit::NONE, ..Draft::default() };
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&POLICY) {
            Some(keyword) => policy.parse(keyword, word, cursor)?,
            None if policy.selector.is_some() && selector::begins(cursor) => {
                let has_template = !policy.templates.is_empty();
                let rule = if has_template { template::TWO_IDS } else { TWO_SELECTORS };
                return Err(cursor.misplaced(word, rule));
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
    policy.finish(preferred, cursor).map(Box::new)
}

impl Draft {
    /// The value of `keyword`, which stands in `word`.
    fn parse(
        &mut self,
        keyword: PolicyWord,
        word: &Word<'_>,
        cursor: &mut Cursor<'_, '_>,
    ) -> Result<(), SyntaxError> {
        match keyword {
            PolicyWord::Direction if self.direction.is_some() => {
                return Err(cursor.duplicate("dir", word));
            }
            PolicyWord::Direction => self.direction = Some(cursor.choice(&POLICY_DIRECTIONS)?),
            PolicyWord::Context if self.context.is_some() => {
                return Err(cursor.duplicate("ctx", word));
            }
            PolicyWord::Context => self.context = Some(cursor.value()?.text().to_owned()),
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
            PolicyWord::IfId => self.if_id = Some(IfId(cursor.number()?)),
            PolicyWord::Offload => self.offload_device = Some(parse_offload(cursor)?),
        }
        Ok(())
    }

    /// What the words say together.
    fn finish(
        self,
        preferred: Option<Family>,
        cursor: &Cursor<'_, '_>,
    ) -> Result<PolicyArgs, SyntaxError> {
        Ok(PolicyArgs {
            direction: self.direction.ok_or_else(|| cursor.refuse(NO_DIRECTION))?,
            kind: self.kind,
            index: self.index,
            selector: self.selector.unwrap_or_default().selector(preferred.unwrap_or(Family::V4)),
            priority: self.priority,
            action: self.action,
            templates: self.templates,
            mark: self.mark,
            if_id: self.if_id,
            flags: self.flags,
            limits: self.limits,
            context: self.context,
            offload_device: self.offload_device,
        })
    }
}

/// Behind `offload`: `packet dev DEV`; the direction is the policy's.
fn parse_offload(cursor: &mut Cursor<'_, '_>) -> Result<String, SyntaxError> {
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
