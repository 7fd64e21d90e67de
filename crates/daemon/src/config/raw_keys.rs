//! Checks keys and values one by one, so that all errors are reported where serde stops at the
//! first.
//!
//! What is wrong is taken out of the document, and the rest is read again, until nothing is. A key
//! that was taken out is not missing.

use std::ops::Range;

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeArray, DeString, DeTable, DeValue},
};

use super::{Config, error::RawDiagnostic};

type Key<'t> = Spanned<DeString<'t>>;
type Value<'t> = Spanned<DeValue<'t>>;

/// Those that are tables: `[[device]]` is a list of them.
const SECTIONS: [&str; 10] =
    ["host", "inline", "wire", "xfrm", "tunnel", "control", "status", "runtime", "crypto", "cache"];

/// The configuration of a document.
///
/// # Errors
/// All that is wrong, in the order in which it stands there.
pub(super) fn read(mut document: DeTable<'_>) -> Result<Config, Vec<RawDiagnostic>> {
    let mut faults = take_wrong_brackets(&mut document);
    let mut wrong = Vec::new();
    loop {
        let error = match deserialize(&document) {
            Ok(config) if faults.is_empty() => return Ok(config),
            Ok(_) => break,
            Err(error) => error,
        };
        let taken = error.span().and_then(|place| take(&mut document, None, &place));
        let missing = error.message().strip_prefix("missing field `");
        let missing = missing.and_then(|rest| rest.strip_suffix('`'));
        let is_taken = taken.as_ref().zip(missing).is_some_and(|(taken, missing)| {
            wrong
                .iter()
                .any(|key: &RemovedKey| key.out_of == Some(taken.begin) && key.name == missing)
        });
        if !is_taken {
            faults.push(RawDiagnostic::of_toml(&error));
        }
        match taken {
            Some(taken) => wrong.push(taken),
            None => break,
        }
    }
    faults.sort();
    Err(faults)
}

fn deserialize(document: &DeTable<'_>) -> Result<Config, toml::de::Error> {
    Config::deserialize(toml::Deserializer::from(Spanned::new(0..0, document.clone())))
}

/// Sections that are there any number of times, but for devices, and devices that are but one.
/// Where sections are not told from lists, the first value of a list counts for the first key of
/// its section.
fn take_wrong_brackets(document: &mut DeTable<'_>) -> Vec<RawDiagnostic> {
    let wrong = document.iter().filter_map(|(name, value)| {
        let name = name.get_ref();
        let message = match (&**name, value.get_ref().is_array()) {
            ("device", false) => "devices are a list: each begins with [[device]]".to_owned(),
            (section, true) if SECTIONS.contains(&section) => {
                format!("there is one section {section}: it begins with [{section}]")
            }
            _ => return None,
        };
        Some((name.clone(), RawDiagnostic { place: value.span().start, message }))
    });
    let (names, faults): (Vec<_>, _) = wrong.unzip();
    for name in names {
        document.remove(&*name);
    }
    faults
}

/// What was taken out of a document: its key, none in a list, where it begins, and where that
/// begins which it was in; `None` is the document.
struct RemovedKey {
    name: String,
    begin: usize,
    out_of: Option<usize>,
}

/// Takes out the innermost of a table's values that is at a place, or whose key is.
fn take(table: &mut DeTable<'_>, begin: Option<usize>, place: &Range<usize>) -> Option<RemovedKey> {
    let within = table.iter_mut().find_map(|(_, value)| take_within(value, place));
    if within.is_some() {
        return within;
    }
    let is_at = |(key, value): &(&Key<'_>, &Value<'_>)| {
        holds(&key.span(), place) || holds(&value.span(), place)
    };
    let name = table.iter().find(is_at)?.0.get_ref().clone();
    let value = table.remove(&*name)?;
    Some(RemovedKey { name: name.into_owned(), begin: value.span().start, out_of: begin })
}

fn take_within(value: &mut Value<'_>, place: &Range<usize>) -> Option<RemovedKey> {
    let begin = value.span().start;
    match value.get_mut() {
        DeValue::Table(table) => take(table, Some(begin), place),
        DeValue::Array(list) => take_of_list(list, begin, place),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => None,
    }
}

fn take_of_list(list: &mut DeArray<'_>, begin: usize, place: &Range<usize>) -> Option<RemovedKey> {
    let within = list.iter_mut().find_map(|value| take_within(value, place));
    if within.is_some() {
        return within;
    }
    let at = list.iter().position(|value| holds(&value.span(), place))?;
    let begins = list[at].span().start;
    let taken = RemovedKey { name: String::new(), begin: begins, out_of: Some(begin) };
    let rest = list.iter().enumerate().filter(|(other, _)| *other != at);
    *list = rest.map(|(_, value)| value.clone()).collect();
    Some(taken)
}

fn holds(span: &Range<usize>, place: &Range<usize>) -> bool {
    span.start <= place.start && place.end <= span.end
}
