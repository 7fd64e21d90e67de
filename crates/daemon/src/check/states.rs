//! States that nothing uses, or that protect less than they seem to.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use uxfrm_engine::{Direction, Mode, Reqid, Sa, SaTransform, Template};

use super::{Finding, Subject};
use crate::wording;

/// States that no template of a policy takes.
pub(super) fn without_policy(subject: &Subject<'_>) -> Vec<Finding> {
    let templates = TemplateIndex::of(subject);
    let unused = subject.states().filter(|sa| !templates.takes(sa));
    let finding = |sa: &Sa| {
        Finding::note(
            format!(
                "no policy has a template for `{}` (reqid {}, mode {}): no packet leaves by it",
                wording::state(sa),
                sa.reqid().0,
                sa.config().mode
            ),
            format!(
                "policy add … tmpl src {} dst {} proto esp reqid {} mode {}",
                sa.source(),
                sa.id().destination,
                sa.reqid().0,
                sa.config().mode
            ),
        )
    };
    unused.map(finding).collect()
}

/// `enc` without `auth`: packets can be changed on the way, and their plain text found out.
pub(super) fn without_authentication(subject: &Subject<'_>) -> Vec<Finding> {
    let open = subject.states().filter(|sa| !sa.transform().authenticates());
    let finding = |sa: &Sa| {
        Finding::warning(
            format!(
                "`{}` does not authenticate: whoever is on the path can change packets, and read \
                 them by what is answered (RFC 4303 §3.2)",
                wording::state(sa)
            ),
            "use `aead 'rfc4106(gcm(aes))' …`, or add `auth-trunc 'hmac(sha256)' …`".to_owned(),
        )
    };
    open.map(finding).collect()
}

/// Inbound states that take any number twice.
pub(super) fn without_replay_window(subject: &Subject<'_>) -> Vec<Finding> {
    let inbound = inbound_ends(subject);
    let open = subject.states().filter(|sa| {
        sa.config().window == 0
            && sa.config().direction != Some(Direction::Out)
            && inbound.contains(&(sa.source(), sa.id().destination))
    });
    let finding = |sa: &Sa| {
        Finding::note(
            format!(
                "`{}` has no replay window: a packet that somebody sends again is taken again",
                wording::state(sa)
            ),
            "add `replay-window 128 flag esn` at both ends".to_owned(),
        )
    };
    open.map(finding).collect()
}

/// States that encrypt nothing.
pub(super) fn without_cipher(subject: &Subject<'_>) -> Vec<Finding> {
    let clear = subject.states().filter(|sa| !sa.transform().encrypts());
    let finding = |sa: &Sa| {
        Finding::note(
            format!("`{}` authenticates only: its packets can be read", wording::state(sa)),
            "use `aead 'rfc4106(gcm(aes))' …` unless that is meant".to_owned(),
        )
    };
    clear.map(finding).collect()
}

/// States of one key, the other way round: what one sent could be taken for the other's.
pub(super) fn with_one_key_for_both_ways(subject: &Subject<'_>) -> Vec<Finding> {
    let mut seen: HashMap<(u128, IpAddr, IpAddr), &Sa> = HashMap::new();
    let mut pairs = Vec::new();
    for sa in subject.states() {
        let (from, to) = (sa.source(), sa.id().destination);
        let back = keys(sa).find_map(|key| seen.get(&(key, to, from)).copied());
        // States come in no order.
        let ordered = |back: &Sa| back.id().spi.0 <= sa.id().spi.0;
        pairs.extend(back.map(|back| if ordered(back) { (back, sa) } else { (sa, back) }));
        for key in keys(sa) {
            seen.entry((key, from, to)).or_insert(sa);
        }
    }
    let finding = |(one, other): (&Sa, &Sa)| {
        Finding::warning(
            format!(
                "`{}` and `{}` have one key for both directions",
                wording::state(one),
                wording::state(other)
            ),
            "give each its own: 0x$(openssl rand -hex 20) for AES-128-GCM, the same at both ends"
                .to_owned(),
        )
    };
    pairs.into_iter().map(finding).collect()
}

/// What tells its keys from others, without them.
fn keys(sa: &Sa) -> impl Iterator<Item = u128> {
    let SaTransform { encryption_key, authentication_key, .. } = sa.secrets();
    let keys = [encryption_key, authentication_key].into_iter();
    keys.filter(|key| !key.is_empty()).map(|key| key.fingerprint())
}

/// Source and destination of all templates of `in` and `fwd` policies.
fn inbound_ends(subject: &Subject<'_>) -> HashSet<(IpAddr, IpAddr)> {
    let inbound = subject.snapshot.spd.iter().filter(|entry| entry.direction() != Direction::Out);
    let ends = |template: Template| (template.source, template.destination);
    inbound.flat_map(|entry| entry.templates().map(ends).collect::<Vec<_>>()).collect()
}

/// What templates ask for, by the state's destination.
struct TemplateIndex {
    by_destination: HashMap<IpAddr, HashSet<(Reqid, Mode)>>,
}

impl TemplateIndex {
    fn of(subject: &Subject<'_>) -> Self {
        let mut by_destination: HashMap<_, HashSet<_>> = HashMap::new();
        for entry in subject.snapshot.spd.iter() {
            for Template { destination, mode, reqid, .. } in entry.templates() {
                by_destination.entry(destination).or_default().insert((reqid, mode));
            }
        }
        Self { by_destination }
    }

    fn takes(&self, sa: &Sa) -> bool {
        let destination = sa.id().destination;
        let open = sa.family().unspecified();
        let mode = sa.config().mode;
        [destination, open]
            .iter()
            .filter_map(|one| self.by_destination.get(one))
            .any(|asked| asked.contains(&(sa.reqid(), mode)) || asked.contains(&(Reqid(0), mode)))
    }
}
