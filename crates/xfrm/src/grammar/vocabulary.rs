//! Keyword tables as lists of words by place. Help, completion and manual use them, so none lacks a
//! word that the parser takes.

use uxfrm_cli_grammar::WordAndValue;
use uxfrm_crypto::{AEAD_NAMES, AUTH_NAMES, CIPHER_NAMES};

use super::keyword::{
    ACTIONS, DEFAULT_ACTIONS, DEVICE, DIRECTION, ENCAPS, FAMILIES, FLUSH_POLICIES, FLUSH_STATES,
    ID, LEVELS, LIMITS, MARK, MASK, MODES, MONITOR, OBJECTS, OFFLOADS, OPTIONS, POLICY,
    POLICY_COMMANDS, POLICY_DEFAULTS, POLICY_DIRECTIONS, POLICY_FILTER, POLICY_FLAGS, POLICY_KEY,
    POLICY_KINDS, PROTOCOLS, SAVE, SELECTOR, SPI_REQUEST, STATE, STATE_COMMANDS, STATE_DIRECTIONS,
    STATE_EXTRA_FLAGS, STATE_FILTER, STATE_FLAGS, SYNC, TEMPLATE, THRESHOLDS, Table, UPPER,
};

/// What may stand in the place of `state`, `policy` …
pub(crate) fn objects() -> Vec<WordAndValue> {
    phrases(&OBJECTS)
}

/// Before the object.
pub(crate) fn options() -> Vec<WordAndValue> {
    phrases(&OPTIONS)
}

/// Behind an object.
pub(crate) fn commands(object: &str) -> Vec<WordAndValue> {
    match object {
        "state" | "sa" => phrases(&STATE_COMMANDS),
        "policy" => phrases(&POLICY_COMMANDS),
        "monitor" => phrases(&MONITOR),
        "save" => phrases(&SAVE),
        "sync" => phrases(&SYNC),
        _none => Vec::new(),
    }
}

/// Behind a command: the words that begin a part of it.
pub(crate) fn parts(object: &str, command: &str) -> Vec<WordAndValue> {
    match (object, command) {
        ("state" | "sa", "add" | "update") => [phrases(&ID), phrases(&STATE)].concat(),
        ("state" | "sa", "allocspi") => [phrases(&ID), phrases(&SPI_REQUEST)].concat(),
        ("state" | "sa", "delete" | "get") => [phrases(&ID), phrases(&MARK)].concat(),
        ("state" | "sa", "deleteall" | "delall" | "list" | "show" | "lst") => {
            [phrases(&STATE_FILTER), phrases(&ID)].concat()
        }
        ("state" | "sa", "flush") => phrases(&FLUSH_STATES),
        ("policy", "add" | "update") => [selector(), phrases(&POLICY)].concat(),
        ("policy", "delete" | "get") => [selector(), phrases(&POLICY_KEY)].concat(),
        ("policy", "deleteall" | "delall" | "list" | "show" | "lst") => {
            [selector(), phrases(&POLICY_FILTER)].concat()
        }
        ("policy", "flush") => phrases(&FLUSH_POLICIES),
        ("policy", "set") => phrases(&THRESHOLDS),
        ("policy", "setdefault") => phrases(&POLICY_DEFAULTS),
        _without => Vec::new(),
    }
}

/// What stands for what: the names of the grammar's parts, with the words that each of them is.
pub(crate) fn notions() -> Vec<(&'static str, Vec<WordAndValue>)> {
    vec![
        ("ID", phrases(&ID)),
        ("SELECTOR", phrases(&SELECTOR)),
        ("UPSPEC", phrases(&UPPER)),
        ("TMPL", [phrases(&ID), phrases(&TEMPLATE)].concat()),
        ("LIMIT", phrases(&LIMITS)),
        ("MARK", vec![("VALUE", "[ mask MASK ]")]),
        ("MASK", phrases(&MASK)),
        ("OFFLOAD", [phrases(&OFFLOADS), phrases(&DEVICE), phrases(&DIRECTION)].concat()),
        ("XFRM-PROTO", phrases(&PROTOCOLS)),
        ("MODE", phrases(&MODES)),
        ("FLAG (state)", phrases(&STATE_FLAGS)),
        ("EXTRA-FLAG", phrases(&STATE_EXTRA_FLAGS)),
        ("FLAG (policy)", phrases(&POLICY_FLAGS)),
        ("DIR (state)", phrases(&STATE_DIRECTIONS)),
        ("DIR (policy)", phrases(&POLICY_DIRECTIONS)),
        ("PTYPE", phrases(&POLICY_KINDS)),
        ("ACTION", phrases(&ACTIONS)),
        ("ACTION (setdefault)", phrases(&DEFAULT_ACTIONS)),
        ("LEVEL", phrases(&LEVELS)),
        ("ENCAP-TYPE", phrases(&ENCAPS)),
        ("FAMILY", phrases(&FAMILIES)),
    ]
}

/// The words that may follow `word` in a command on `object`; empty for free names and numbers.
pub(crate) fn values(object: &str, command: &str, word: &str) -> Vec<&'static str> {
    let is_policy = object == "policy";
    match word {
        "-family" | "-f" => FAMILIES.words(),
        "mode" => MODES.words(),
        "proto" if is_policy => {
            [PROTOCOLS.words(), vec!["tcp", "udp", "icmp", "ipv6-icmp", "sctp", "gre", "any"]]
                .concat()
        }
        "proto" => PROTOCOLS.words(),
        "dir" if is_policy => POLICY_DIRECTIONS.words(),
        "dir" => STATE_DIRECTIONS.words(),
        "flag" if is_policy => POLICY_FLAGS.words(),
        "flag" => STATE_FLAGS.words(),
        "extra-flag" => STATE_EXTRA_FLAGS.words(),
        "ptype" => POLICY_KINDS.words(),
        "action" => ACTIONS.words(),
        "in" | "out" | "fwd" if command == "setdefault" => DEFAULT_ACTIONS.words(),
        "level" => LEVELS.words(),
        "encap" => ENCAPS.words(),
        "limit" => LIMITS.words(),
        "sel" => [SELECTOR.words(), UPPER.words()].concat(),
        "tmpl" => [ID.words(), TEMPLATE.words()].concat(),
        "offload" if is_policy => vec!["packet"],
        "offload" => [OFFLOADS.words(), DEVICE.words()].concat(),
        "crypto" | "packet" => DEVICE.words(),
        "aead" => AEAD_NAMES.to_vec(),
        "enc" => CIPHER_NAMES.to_vec(),
        "auth" | "auth-trunc" => AUTH_NAMES.to_vec(),
        _other => Vec::new(),
    }
}

/// Words that may stand behind a whole value, beside the parts of the command.
pub(crate) fn continuations(command_line: &[&str]) -> Vec<&'static str> {
    let has = |word: &str| command_line.contains(&word);
    let mut words = Vec::new();
    if has("mark") || has("output-mark") || has("set-mark") {
        words.extend(MASK.words());
    }
    if has("tmpl") {
        words.extend(ID.words());
        words.extend(TEMPLATE.words());
    }
    if has("sel") {
        words.extend(SELECTOR.words());
        words.extend(UPPER.words());
    }
    if has("offload") {
        words.extend(DIRECTION.words());
    }
    words
}

fn selector() -> Vec<WordAndValue> {
    [phrases(&SELECTOR), phrases(&UPPER)].concat()
}

fn phrases<T>(table: &Table<T>) -> Vec<WordAndValue> {
    table.phrases()
}
