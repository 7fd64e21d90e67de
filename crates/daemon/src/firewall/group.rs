//! The policies of one match shape in a run: a few rules, or one rule and a set.

use std::collections::HashMap;

use uxfrm_io::nftables::{
    Condition, Rule, RuleId, RuleVerdict, Set, SetId, SetKeys, SetLookup, TableChange,
};

use super::{key_refcounts::KeyRefcounts, match_shape::MatchShape};

/// The policies of one shape.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) shape: MatchShape,
    wanted: KeyRefcounts,
    form: GroupForm,
    /// Keys that policies came for or went with since the last time, and whether they were wanted
    /// then.
    touched: HashMap<Vec<u8>, bool>,
    /// Rules that a set has replaced and that are still there.
    replaced: Vec<RuleId>,
    /// The form before the change that the kernel was asked for last.
    before: Option<GroupForm>,
}

/// How the kernel represents a group.
#[derive(Clone, Debug)]
enum GroupForm {
    /// A rule for each key.
    Rules(Vec<(Vec<u8>, Placed)>),
    /// A set of all keys, and the rule that asks it.
    Set(SetId, Placed),
}

/// A rule, once it is in the kernel.
pub(super) type Placed = Option<RuleId>;

/// What happens to the packets of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupVerdict {
    pub(super) counter: Option<&'static str>,
    pub(super) verdict: RuleVerdict,
}

/// Policies of one shape that have a rule each. A look into a set costs the kernel what three or
/// four rules do.
const FEW: usize = 4;

impl Group {
    pub(super) fn new(shape: MatchShape) -> Self {
        let wanted = KeyRefcounts::new(shape.key_length());
        let form = GroupForm::Rules(Vec::new());
        let (touched, replaced) = (HashMap::new(), Vec::new());
        Self { shape, wanted, form, touched, replaced, before: None }
    }

    /// A policy wants this key, from the start.
    pub(super) fn put(&mut self, key: &[u8]) {
        self.wanted.put(key);
    }

    /// A policy wants this key from now on.
    pub(super) fn add(&mut self, key: Vec<u8>) {
        self.begin();
        let is_new = self.wanted.put(&key);
        self.touched.entry(key).or_insert(!is_new);
    }

    /// A policy wants it no more; whether one did.
    #[must_use]
    pub(super) fn remove(&mut self, key: Vec<u8>) -> bool {
        self.begin();
        let known = self.wanted.take(&key).is_some();
        self.touched.entry(key).or_insert(known);
        known
    }

    /// Before the first key of a change: nothing has been asked for it.
    fn begin(&mut self) {
        if self.touched.is_empty() {
            self.before = None;
        }
    }

    /// The kernel has done nothing of what it was asked for: it has what it had.
    pub(super) fn revert(&mut self) {
        if let Some(before) = self.before.take() {
            self.form = before;
            self.replaced.clear();
        }
    }

    /// What was touched is as it was.
    pub(super) fn forget(&mut self) {
        self.touched = HashMap::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.len() == 0
    }

    pub(super) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The set that it needs now and has not. `next` is the name of the next one.
    pub(super) fn settle(&mut self, next: &mut u32) -> Option<Set> {
        let GroupForm::Rules(rules) = &mut self.form else { return None };
        if self.wanted.len() <= FEW {
            let is_placed = |key: &[u8]| rules.iter().any(|(known, _placed)| known == key);
            let new = self.wanted.iter().map(|key| key[..self.shape.key_length()].to_vec());
            let new: Vec<_> = new.filter(|key| !is_placed(key)).map(|key| (key, None)).collect();
            rules.extend(new);
            return None;
        }
        self.replaced.extend(rules.iter().filter_map(|(_key, placed)| *placed));
        let id = SetId(*next);
        *next += 1;
        self.form = GroupForm::Set(id, None);
        let length = self.shape.key_length();
        let mut keys = SetKeys::new(length);
        self.wanted.iter().for_each(|key| keys.push(&key[..length]));
        Some(Set { id, keys })
    }

    /// Asks for what is wanted now and was not before, but for rules.
    pub(super) fn come(&mut self, next: &mut u32, asked: &mut Vec<TableChange>) {
        self.before = Some(self.form.clone());
        match self.form {
            GroupForm::Set(set, _rule) => {
                let came = self.keys(|was, is| !was && is);
                if !came.is_empty() {
                    asked.push(TableChange::AddKeys { set, keys: came });
                }
            }
            GroupForm::Rules(_) => {
                let Some(Set { id, keys }) = self.settle(next) else { return };
                asked.push(TableChange::AddSet { set: id, length: keys.length() });
                asked.push(TableChange::AddKeys { set: id, keys });
            }
        }
    }

    /// Asks that what is wanted no more goes, and forgets what was before.
    pub(super) fn go(&mut self, chain: &'static str, asked: &mut Vec<TableChange>) {
        let delete = |rule| TableChange::DeleteRule { chain, rule };
        // A set that has just replaced rules never had what goes with them.
        let is_new = !self.replaced.is_empty();
        asked.extend(self.replaced.drain(..).map(delete));
        match &mut self.form {
            GroupForm::Rules(rules) => {
                let wanted = &self.wanted;
                let gone = rules.extract_if(.., |(key, _placed)| !wanted.has(key));
                asked.extend(gone.filter_map(|(_key, placed)| placed).map(delete));
            }
            GroupForm::Set(set, rule) if self.wanted.len() == 0 => {
                asked.extend(rule.take().map(delete));
                asked.push(TableChange::DeleteSet { set: *set });
            }
            GroupForm::Set(set, _rule) => {
                let set = *set;
                let gone = self.keys(|was, is| was && !is);
                if !is_new && !gone.is_empty() {
                    asked.push(TableChange::DeleteKeys { set, keys: gone });
                }
            }
        }
        self.touched = HashMap::new();
    }

    /// The keys that were touched, and were and are wanted as asked for.
    fn keys(&self, meant: impl Fn(bool, bool) -> bool) -> SetKeys {
        let mut keys = SetKeys::new(self.shape.key_length());
        for (key, was) in &self.touched {
            if meant(*was, self.wanted.has(key)) {
                keys.push(key);
            }
        }
        keys
    }

    /// Its rules in the kernel, or still to be put there.
    pub(super) fn placed(&self) -> Box<dyn DoubleEndedIterator<Item = Placed> + '_> {
        match &self.form {
            GroupForm::Rules(rules) => Box::new(rules.iter().map(|(_key, placed)| *placed)),
            GroupForm::Set(_set, placed) => Box::new(std::iter::once(*placed)),
        }
    }

    /// The same, to be noted.
    pub(super) fn placed_mut(&mut self) -> Box<dyn Iterator<Item = &mut Placed> + '_> {
        match &mut self.form {
            GroupForm::Rules(rules) => Box::new(rules.iter_mut().map(|(_key, placed)| placed)),
            GroupForm::Set(_set, placed) => Box::new(std::iter::once(placed)),
        }
    }

    /// The rules themselves, in the order of [`Group::placed`].
    pub(super) fn rules(
        &self,
        fate: GroupVerdict,
    ) -> Box<dyn DoubleEndedIterator<Item = Rule> + '_> {
        match &self.form {
            GroupForm::Rules(rules) => {
                Box::new(rules.iter().map(move |(key, _)| self.single(key, fate)))
            }
            GroupForm::Set(set, _placed) => Box::new(std::iter::once(self.asking(*set, fate))),
        }
    }

    fn single(&self, key: &[u8], fate: GroupVerdict) -> Rule {
        let mut conditions = self.shape.fixed.clone();
        let mut rest = key;
        for question in &self.shape.questions {
            let (reply, others) = rest.split_at(question.size());
            conditions.push(question.answered(reply));
            rest = others;
        }
        rule(conditions, None, fate)
    }

    fn asking(&self, set: SetId, fate: GroupVerdict) -> Rule {
        let among = SetLookup { questions: self.shape.questions.clone(), set };
        rule(self.shape.fixed.clone(), Some(among), fate)
    }
}

fn rule(conditions: Vec<Condition>, among: Option<SetLookup>, fate: GroupVerdict) -> Rule {
    Rule { conditions, set_lookup: among, counter: fate.counter, verdict: fate.verdict }
}
