//! A reader of both forms, as strict as their descriptions.

use std::collections::{BTreeMap, BTreeSet};

/// A series and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// What stands above the series of a metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Head {
    pub(crate) help: String,
    pub(crate) kind: String,
    pub(crate) unit: Option<String>,
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Exposition {
    pub(crate) heads: BTreeMap<String, Head>,
    pub(crate) series: Vec<Series>,
    pub(crate) ends: bool,
}

impl Exposition {
    /// The value of the one series with this name and at least these labels.
    pub(crate) fn of(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &&Series| {
            series.name == name
                && labels.iter().all(|(name, value)| {
                    series.labels.get(*name).map(String::as_str) == Some(*value)
                })
        };
        let all: Vec<_> = self.series.iter().filter(has).collect();
        assert!(all.len() <= 1, "{name} {labels:?}: {all:?}");
        all.first().map(|series| series.value)
    }
}

/// Reads a page; panics where it is not one.
pub(crate) fn read(page: &str) -> Exposition {
    let mut read = Exposition::default();
    let mut known = BTreeSet::new();
    let mut metric = String::new();
    assert!(page.ends_with('\n') && !page.contains('\r') && !page.contains('\0'));
    for line in page.lines() {
        assert!(!read.ends, "{line:?} behind the end");
        match line.strip_prefix("# ") {
            Some("EOF") => read.ends = true,
            Some(comment) => read_head(&mut read, &mut metric, comment),
            None => {
                let series = read_series(line);
                let name = [metric.clone(), format!("{metric}_total"), format!("{metric}_info")];
                assert!(name.contains(&series.name), "{line:?} beneath {metric}");
                assert!(
                    known.insert((series.name.clone(), series.labels.clone())),
                    "twice: {line}"
                );
                read.series.push(series);
            }
        }
    }
    read
}

fn read_head(read: &mut Exposition, metric: &mut String, comment: &str) {
    let mut words = comment.splitn(3, ' ');
    let [kind, name, rest] = [(); 3].map(|()| words.next().expect("three words"));
    if kind == "HELP" {
        assert!(is_name(name) && !read.heads.contains_key(name), "{comment}");
        name.clone_into(metric);
    }
    assert_eq!(name, metric, "{comment}");
    let head = read.heads.entry(name.to_owned()).or_default();
    let said = match kind {
        "HELP" => &mut head.help,
        "TYPE" => &mut head.kind,
        "UNIT" => head.unit.get_or_insert_default(),
        other => panic!("a comment {other}"),
    };
    assert!(said.is_empty() && !rest.is_empty(), "{comment}");
    rest.clone_into(said);
}

fn read_series(line: &str) -> Series {
    let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a name and a value"));
    assert!(is_name(name), "{line:?}");
    let (labels, value) = match rest.strip_prefix('{') {
        Some(labels) => read_labels(labels),
        None => (BTreeMap::new(), rest),
    };
    let value = value.strip_prefix(' ').expect("a value");
    assert!(!value.contains(' '), "{line:?}");
    Series { name: name.to_owned(), labels, value: value.parse().expect("a number") }
}

/// Labels up to the brace, and what stands behind it.
fn read_labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("a name and a value");
        assert!(is_name(name) && !name.contains(':'), "{name:?}");
        let (value, rest) = read_value(rest);
        assert!(value.len() <= 128 && !value.contains(char::is_control), "{value:?}");
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        match rest.split_at(1) {
            (",", more) => text = more,
            ("}", behind) => return (labels, behind),
            (other, _) => panic!("{other:?} behind a label"),
        }
    }
}

/// A value up to its quote, and what stands behind it.
fn read_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match letters.next().expect("an escape").1 {
                'n' => '\n',
                same @ ('\\' | '"') => same,
                other => panic!("\\{other}"),
            }),
            letter => value.push(letter),
        }
    }
    panic!("no quote in {text:?}");
}

fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || letter == ':';
    name.starts_with(is_letter)
        && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}
