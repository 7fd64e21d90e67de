//! The grammar's own page, completion and manual, made from one table of its words.

use uxfrm_cli_grammar::{WordAndValue, completion, is_abbreviation, page, takes_value, words_of};
use uxfrm_tunnel::TunnelKind;
use uxfrm_tunnel::config::UdpFraming;

/// `encap` of a tunnel, for errors.
pub(crate) const ENCAPS: &str = "fou, gue or none";
/// Options of `fou`, for errors.
pub(crate) const FOU_OPTIONS: &str =
    "port, ipproto, gue, peer, peer_port, local, dev, -6 or noudp6zerocsumrx";

const FOU_COMMANDS: [WordAndValue; 3] = [("add", "OPTIONS"), ("delete", "OPTIONS"), ("show", "")];
const FOU: [WordAndValue; 10] = [
    ("port", "PORT"),
    ("ipproto", "PROTO"),
    ("gue", ""),
    ("local", "ADDR"),
    ("peer", "ADDR"),
    ("peer_port", "PORT"),
    ("dev", "NAME"),
    ("-6", ""),
    ("udp6zerocsumrx", ""),
    ("noudp6zerocsumrx", ""),
];
const LINK_COMMANDS: [WordAndValue; 4] =
    [("add", "NAME OPTIONS"), ("change", "NAME OPTIONS"), ("delete", "NAME"), ("show", "[ NAME ]")];
/// Before `type`.
const LINK: [WordAndValue; 6] =
    [("name", "NAME"), ("dev", "NAME"), ("mtu", "MTU"), ("up", ""), ("down", ""), ("type", "TYPE")];
const SHOW: [WordAndValue; 3] = [("dev", "NAME"), ("type", "TYPE"), ("up", "")];
/// Behind `type`, of every kind.
const TUNNEL: [WordAndValue; 21] = [
    ("remote", "ADDR"),
    ("local", "ADDR"),
    ("ttl", "TTL"),
    ("hoplimit", "TTL"),
    ("tos", "TOS"),
    ("tclass", "TOS"),
    ("encap", "{ fou | gue | none }"),
    ("noencap", ""),
    ("encap-sport", "{ PORT | auto }"),
    ("encap-dport", "PORT"),
    ("encap-csum", ""),
    ("noencap-csum", ""),
    ("encap6-csum", ""),
    ("noencap6-csum", ""),
    ("encap-udp6-csum", ""),
    ("noencap-udp6-csum", ""),
    ("encap-csum6", ""),
    ("noencap-csum6", ""),
    ("encap-remcsum", ""),
    ("noencap-remcsum", ""),
    ("mode", "MODE"),
];
/// Over IPv4.
const OVER_V4: [WordAndValue; 4] =
    [("pmtudisc", ""), ("nopmtudisc", ""), ("ignore-df", ""), ("noignore-df", "")];
const OVER_V6: [WordAndValue; 2] =
    [("encaplimit", "{ 0..255 | none }"), ("flowlabel", "{ LABEL | inherit }")];
const GRE: [WordAndValue; 9] = [
    ("key", "KEY"),
    ("ikey", "KEY"),
    ("okey", "KEY"),
    ("seq", ""),
    ("iseq", ""),
    ("oseq", ""),
    ("csum", ""),
    ("icsum", ""),
    ("ocsum", ""),
];
const SIT: [WordAndValue; 2] = [("6rd-prefix", "PREFIX"), ("6rd-relay_prefix", "PREFIX")];

/// Options before the command.
const OPTIONS: [WordAndValue; 11] = [
    ("-statistics", ""),
    ("-details", ""),
    ("-oneline", ""),
    ("-json", ""),
    ("-pretty", ""),
    ("-4", ""),
    ("-6", ""),
    ("-force", ""),
    ("-batch", "FILE"),
    ("-netns", "NAME"),
    ("-control", "PATH"),
];

/// The options behind `type KIND`.
fn options(kind: TunnelKind) -> Vec<WordAndValue> {
    let mut phrases = TUNNEL.to_vec();
    match kind {
        TunnelKind::Ipip => phrases.extend(OVER_V4),
        TunnelKind::Sit => phrases.extend(OVER_V4.into_iter().chain(SIT)),
        TunnelKind::Gre => phrases.extend(OVER_V4.into_iter().chain(GRE)),
        TunnelKind::Ip6tnl => phrases.extend(OVER_V6),
        TunnelKind::Ip6gre => phrases.extend(OVER_V6.into_iter().chain(GRE)),
    }
    if kind.is_gre() {
        phrases.retain(|(word, _)| *word != "mode");
    }
    phrases
}

fn modes(kind: TunnelKind) -> &'static [&'static str] {
    match kind {
        TunnelKind::Ipip => &["ipip", "any"],
        TunnelKind::Sit => &["ip6ip", "ipip", "any"],
        TunnelKind::Ip6tnl => &["ip6ip6", "ipip6", "any"],
        TunnelKind::Gre | TunnelKind::Ip6gre => &[],
    }
}

fn commands(object: &str) -> &'static [WordAndValue] {
    if object == "fou" { &FOU_COMMANDS } else { &LINK_COMMANDS }
}

/// What `uxfrm OBJECT help` prints, of `fou` or `link`.
#[must_use]
pub fn text(object: &str) -> String {
    let mut text = format!("Usage: uxfrm {object} [ IP-OPTIONS ] COMMAND\n");
    page::options(&mut text, "COMMAND", commands(object));
    if object == "fou" {
        page::options(&mut text, "OPTIONS", &FOU);
        text += "PROTO := { ipip | ipv6 | gre | esp | 1..255 }\n";
    } else {
        page::options(&mut text, "OPTIONS", &LINK);
        for kind in TunnelKind::ALL {
            page::options(&mut text, &format!("TYPE {}", kind.name()), &options(kind));
        }
    }
    page::options(&mut text, "IP-OPTIONS", &OPTIONS);
    text
}

/// Completes the last of `words` behind `uxfrm fou` or `uxfrm link`. The caller gives the names of
/// interfaces.
#[must_use]
pub fn complete(object: &str, words: &[&str], interfaces: &[String]) -> Vec<String> {
    let (typed, before) = completion::typed(words);
    completion::matching(typed, candidates(object, typed, before, interfaces))
}

fn candidates(object: &str, typed: &str, before: &[&str], interfaces: &[String]) -> Vec<String> {
    let line = completion::behind_options(before, &OPTIONS);
    let [command, rest @ ..] = &line[..] else {
        return if typed.starts_with('-') {
            words_of(&OPTIONS)
        } else {
            words_of(commands(object))
        };
    };
    let command = commands(object).iter().find(|(whole, _)| is_abbreviation(command, whole));
    let last = rest.last().copied().unwrap_or_default();
    match (object, command.map_or("", |(word, _)| word)) {
        (_, "") | ("fou", "show") => Vec::new(),
        ("fou", _) if last == "dev" => interfaces.to_vec(),
        ("fou", _) if last == "ipproto" => {
            ["ipip", "ipv6", "gre", "esp"].map(str::to_owned).to_vec()
        }
        ("fou", _) if takes_value(&FOU, last) => Vec::new(),
        ("fou", _) => words_of(&FOU),
        (_, "add") if rest.is_empty() => words_of(&LINK),
        (_, "delete" | "change") if rest.is_empty() => interfaces.to_vec(),
        (_, "delete") if last == "dev" => interfaces.to_vec(),
        (_, "delete") => Vec::new(),
        (_, "show") if last == "type" => kinds(),
        (_, "show") => {
            let mut words = words_of(&SHOW);
            words.extend(interfaces.iter().cloned());
            if last == "dev" { interfaces.to_vec() } else { words }
        }
        _ => of_tunnel(rest, last, interfaces),
    }
}

/// Behind `link add` or `link change`.
fn of_tunnel(rest: &[&str], last: &str, interfaces: &[String]) -> Vec<String> {
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let at = rest.iter().position(|word| *word == "type");
    let kind = at.and_then(|at| rest.get(at + 1));
    let kind = TunnelKind::ALL.into_iter().find(|one| kind.is_some_and(|kind| *kind == one.name()));
    match (at, kind) {
        (None, _) if last == "dev" => interfaces.to_vec(),
        (None, _) if takes_value(&LINK, last) => Vec::new(),
        (None, _) => words_of(&LINK),
        (Some(_), None) => kinds(),
        (Some(_), Some(kind)) => match last {
            "encap" => {
                let framings = UdpFraming::ALL.iter().map(|framing| framing.properties().word);
                named(&framings.chain(["none"]).collect::<Vec<_>>())
            }
            "encap-sport" => named(&["auto"]),
            "mode" => named(modes(kind)),
            "ttl" | "hoplimit" | "tos" | "tclass" | "flowlabel" => named(&["inherit"]),
            "encaplimit" => named(&["none"]),
            last if takes_value(&options(kind), last) => Vec::new(),
            _ => words_of(&options(kind)),
        },
    }
}

fn kinds() -> Vec<String> {
    TunnelKind::ALL.map(|kind| kind.name().to_owned()).to_vec()
}

/// The grammar's part of uxfrm-fou(8) or uxfrm-link(8), in roff.
#[must_use]
pub fn manual(object: &str) -> String {
    let mut page = String::new();
    page::section(&mut page, "COMMANDS", commands(object));
    if object == "fou" {
        page::section(&mut page, "PORTS", &FOU);
        page += FOU_SECTIONS;
    } else {
        page::section(&mut page, "LINKS", &LINK);
        for kind in TunnelKind::ALL {
            page::section(
                &mut page,
                &format!("TYPE {}", kind.name().to_uppercase()),
                &options(kind),
            );
        }
        page += LINK_SECTIONS;
    }
    page::section(&mut page, "OPTIONS OF IP", &OPTIONS);
    page += SECTIONS;
    page
}

const FOU_SECTIONS: &str = r#".SH RECEIVE PORTS
A port is known by family, UDP port, local address, device, peer and peer port; no two are the same in all of these. It is there when the command ends:
its socket is bound. With
.B \-statistics
each is followed by the packets and bytes that came, and by what was dropped of them, by reason. Counters begin with the port.
"#;
const LINK_SECTIONS: &str = r#".SH TUNNELS
Each is a TUN of its name, down until
.BR "ip link set NAME up" ,
or
.B up
before its type. Addresses and routes are those of
.BR ip\-address (8)
and
.BR ip\-route (8).
.B change
keeps what it does not say.
.B "ip link del"
of the TUN deletes the tunnel as well. TOS and flow labels are hexadecimal numbers, as to iproute2. With
.B \-statistics
a tunnel is followed by what it carried, and by what was dropped, by reason.
"#;
const SECTIONS: &str = r#".SH EXIT STATUS
.TP
0
Done.
.TP
1
No gateway answers, or what is named is not there.
.TP
2
The gateway refuses it; the reason is in the kernel's words.
.TP
255
A word that is not in the grammar, or a value that its word does not take; also
.BR help .
.SH SEE ALSO
.BR ip\-fou (8),
.BR ip\-link (8),
.BR uxfrm\-stat (8)
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    fn after(line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split(' ').collect();
        complete(words[0], &words[1..], &["lo".to_owned(), "tun1".to_owned()])
    }

    #[test]
    fn completion_offers_next_words() {
        for (line, words) in [
            ("fou ", &["add", "delete", "show"][..]),
            ("fou -s sh", &["show"]),
            ("fou -6 add p", &["peer", "peer_port", "port"]),
            ("fou add port ", &[]),
            ("fou add port 5 ipproto g", &["gre"]),
            ("fou d port 5 dev ", &["lo", "tun1"]),
            ("link -st", &["-statistics"]),
            ("link add t", &["type"]),
            ("link add tun1 type ip", &["ip6gre", "ip6tnl", "ipip"]),
            ("link del ", &["lo", "tun1"]),
            ("link show ty", &["type"]),
            ("link add t type gre encap ", &["fou", "gue", "none"]),
            ("link add t type gre ik", &["ikey"]),
            ("link add t type ipip ik", &[]),
            ("link add t type sit mode i", &["ip6ip", "ipip"]),
            ("link change t type ip6tnl encapl", &["encaplimit"]),
            ("bogus x y", &[]),
        ] {
            assert_eq!(after(line), words, "{line}");
        }
    }

    /// A value for what a word takes.
    fn value(takes: &str) -> &str {
        match takes {
            "ADDR" => "any",
            "TTL" | "TOS" | "PORT" | "KEY" | "MTU" => "7",
            "PROTO" | "MODE" => "ipip",
            "NAME" => "t",
            "TYPE" => "gre",
            takes => takes.trim_matches(['{', ' ']).split(' ').next().unwrap(),
        }
    }

    /// The table against the parser: each word is taken, with a value where it has one.
    #[test]
    fn help_contains_only_words_of_the_grammar() {
        let accepts = |line: &str| {
            let parsed = command(&line.split_whitespace().collect::<Vec<_>>());
            let unknown = matches!(
                &parsed,
                Err(crate::Error::Word(uxfrm_cli_grammar::Error::Option { .. })
                    | crate::Error::Unsupported(_))
            );
            assert!(!unknown, "{line}: {parsed:?}");
        };
        for (word, takes) in FOU {
            accepts(&format!("fou add {word} {}", value(takes)));
        }
        for (word, takes) in LINK.into_iter().filter(|(word, _)| *word != "type") {
            accepts(&format!("link add t {word} {} type gre", value(takes)));
        }
        for kind in TunnelKind::ALL {
            for (word, takes) in options(kind) {
                accepts(&format!("link add t type {} {word} {}", kind.name(), value(takes)));
            }
            for mode in modes(kind) {
                let line = format!("link add t type {} mode {mode}", kind.name());
                assert!(command(&line.split(' ').collect::<Vec<_>>()).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn help_and_manual_contain_every_tunnel_word() {
        for object in ["fou", "link"] {
            let (help, manual) = (text(object), manual(object).replace("\\-", "-"));
            let mut all: Vec<WordAndValue> = commands(object).to_vec();
            all.extend(OPTIONS);
            match object {
                "fou" => all.extend(FOU),
                _ => all
                    .extend(LINK.into_iter().chain(TunnelKind::ALL.into_iter().flat_map(options))),
            }
            for (word, _) in all {
                assert!(help.split_whitespace().any(|one| one == word), "{word} in help");
                assert!(manual.contains(word), "{word} in manual");
            }
            assert!(help.lines().all(|line| line.len() <= 110));
        }
    }
}
