//! MIGRATE: policies compared with the machine's kernel; states, which it lacks, by their
//! behaviour.

use std::net::IpAddr;

use uxfrm_engine::{SaId, SaProtocol, Spi};

use crate::{
    kernel::{against_the_kernel, same},
    stage::{Stage, attribute, golden, message, unhex},
};

fn address(text: &str) -> Vec<u8> {
    let IpAddr::V4(address) = text.parse().unwrap() else { panic!("{text} is not IPv4") };
    [&address.octets()[..], &[0; 12]].concat()
}

fn selector(destination: &str, protocol: u8) -> Vec<u8> {
    let mut bytes = [address(destination), address("10.2.0.0"), vec![0; 24]].concat();
    bytes[40..42].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[42..45].copy_from_slice(&[24, 24, protocol]);
    bytes
}

/// An output policy with a template 192.0.2.1 to 192.0.2.2, reqid 16 as in the golden file's state.
fn policy() -> Vec<u8> {
    let mut bytes = selector("10.1.0.0", 0);
    bytes.extend([0xff; 32]);
    bytes.extend([0; 68]);
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let mut template = [address("192.0.2.2"), vec![0; 4], vec![50, 0, 0, 0]].concat();
    template.extend([2, 0, 0, 0]);
    template.extend(address("192.0.2.1"));
    template.extend(16_u32.to_ne_bytes());
    template.extend([1, 0, 0, 0]);
    template.extend([0xff; 12]);
    message(0x13, 5, &[bytes, attribute(5, &template)].concat())
}

#[derive(Clone)]
struct Entry {
    old: (&'static str, &'static str),
    new: (&'static str, &'static str),
    protocol: u8,
    mode: u8,
    reqid: u32,
    families: (u16, u16),
}

const ENTRY: Entry = Entry {
    old: ("192.0.2.1", "192.0.2.2"),
    new: ("192.0.2.3", "192.0.2.4"),
    protocol: 50,
    mode: 1,
    reqid: 16,
    families: (2, 2),
};

impl Entry {
    fn bytes(&self) -> Vec<u8> {
        let addresses = [self.old.1, self.old.0, self.new.1, self.new.0].map(address).concat();
        let families = [self.families.0.to_ne_bytes(), self.families.1.to_ne_bytes()].concat();
        let words = [&[self.protocol, self.mode, 0, 0], &self.reqid.to_ne_bytes()[..]].concat();
        [addresses, words, families].concat()
    }
}

fn migrate(
    destination: &str,
    protocol: u8,
    direction: u8,
    entries: &[Entry],
    more: &[u8],
) -> Vec<u8> {
    let head = [selector(destination, protocol), vec![0, 0, 0, 0, direction, 0, 0, 0]].concat();
    let entries = entries.iter().flat_map(Entry::bytes).collect::<Vec<_>>();
    message(0x21, 5, &[head, attribute(17, &entries), more.to_vec()].concat())
}

fn get() -> Vec<u8> {
    message(0x15, 1, &[selector("10.1.0.0", 0), vec![0, 0, 0, 0, 1, 0, 0, 0]].concat())
}

/// Sends each to both and compares the resulting policy too. An unknown new family is a row of
/// [`crate::differences`].
#[test]
fn migrate_answers_are_the_kernels() {
    against_the_kernel(|kernel| {
        let null = Entry { new: ("192.0.2.3", "0.0.0.0"), ..ENTRY };
        let other = |reqid| Entry { reqid, ..ENTRY };
        let one = |entry: Entry| migrate("10.1.0.0", 0, 1, &[entry], &[]);
        let back = Entry { old: ENTRY.new, new: ENTRY.old, reqid: 0, ..ENTRY };
        let table = [
            ("a policy", policy()),
            ("no entry", migrate("10.1.0.0", 0, 1, &[], &[])),
            ("seven", migrate("10.1.0.0", 0, 1, &[1, 2, 3, 4, 5, 6, 7].map(other), &[])),
            ("a null address", one(null.clone())),
            ("the same twice", migrate("10.1.0.0", 0, 1, &[ENTRY, ENTRY], &[])),
            (
                "one old, two new",
                migrate("10.1.0.0", 0, 1, &[ENTRY, Entry { new: back.new, ..ENTRY }], &[]),
            ),
            ("direction 7", migrate("10.1.0.0", 0, 7, &[ENTRY], &[])),
            ("direction 7 and null", migrate("10.1.0.0", 0, 7, &[null], &[])),
            (
                "policy type 9",
                migrate("10.1.0.0", 0, 1, &[ENTRY], &attribute(16, &[9, 0, 0, 0, 0, 0])),
            ),
            ("no such policy", migrate("10.9.0.0", 0, 1, &[ENTRY], &[])),
            ("no policy in", migrate("10.1.0.0", 0, 0, &[ENTRY], &[])),
            (
                "another interface",
                migrate("10.1.0.0", 0, 1, &[ENTRY], &attribute(31, &[3, 0, 0, 0])),
            ),
            ("another reqid", one(other(6))),
            ("another mode", one(Entry { mode: 0, ..ENTRY })),
            ("another end", one(Entry { old: ("192.0.2.1", "192.0.2.9"), ..ENTRY })),
            ("another protocol", one(Entry { protocol: 17, ..ENTRY })),
            ("a packet that meets it", migrate("10.1.0.77", 0, 1, &[other(6)], &[])),
            ("any protocol", migrate("10.1.0.0", 255, 1, &[ENTRY], &[])),
            ("there", get()),
            ("gone", one(ENTRY)),
            ("back", one(back)),
            ("as before", get()),
            ("an unknown old family", one(Entry { families: (7, 2), ..ENTRY })),
            ("there again", get()),
            (
                "without attribute",
                message(0x21, 5, &[selector("10.1.0.0", 0), vec![0; 8]].concat()),
            ),
        ];
        let mut stage = Stage::new();
        for (what, request) in table {
            same(kernel, &mut stage, what, &request).unwrap();
        }
    });
}

/// As Linux 6.18 sends it; recorded.
#[test]
fn migrate_notifies_listeners() {
    let mut stage = Stage::new();
    stage.ask(&policy());
    stage.heard.clear();
    let manager = [address("1.1.1.1"), address("2.2.2.2"), vec![0; 4], vec![2, 0, 0, 0]].concat();
    let encap = [vec![2, 0, 0x11, 0x94, 0x11, 0x94, 0, 0], vec![0; 16]].concat();
    let more = [attribute(19, &manager), attribute(4, &encap)].concat();
    let request = migrate("10.1.0.0", 0, 1, &[ENTRY], &more);
    assert_eq!(stage.ask(&request)[0].verdict(), Some((0, String::new())));
    let expected = "f40000002100000000000000000000000a0100000000000000000000000000000a02000000000000000000000000000000000000000000000200181800000000000000000000000000000000010000002c001300010101010000000000000000000000000202020200000000000000000000000000000000020000001c0004000200119411940000000000000000000000000000000000000a001000000000000000000050001100c0000202000000000000000000000000c0000201000000000000000000000000c0000204000000000000000000000000c0000203000000000000000000000000320100001000000002000200";
    assert_eq!(stage.heard, [unhex(expected)]);
}

/// Promise 3: under the same key sequence numbers go on, and no packet is accepted twice.
#[test]
fn migrated_state_keeps_its_sequence_numbers() {
    let mut stage = Stage::new();
    stage.ask(&policy());
    let command = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
    let (_, request) = golden().into_iter().find(|(line, _)| line.starts_with(command)).unwrap();
    assert_eq!(stage.ask(&request)[0].verdict(), Some((0, String::new())));
    let find = |stage: &Stage, destination: &str| {
        let destination = destination.parse().unwrap();
        let id = SaId { destination, spi: Spi(0x1000), protocol: SaProtocol::Esp };
        stage.database.snapshot().sad.find(id, 0).cloned()
    };
    let old = find(&stage, "192.0.2.2").unwrap();
    old.sequence().take(5).unwrap();
    for number in [10, 70, 69] {
        old.replay().accept(old.replay().check(number).unwrap()).unwrap();
    }
    let moved = migrate("10.1.0.0", 0, 1, &[ENTRY], &[]);
    assert_eq!(stage.ask(&moved)[0].verdict(), Some((0, String::new())));
    assert!(find(&stage, "192.0.2.2").is_none());
    let new = find(&stage, "192.0.2.4").unwrap();
    assert_eq!(new.source(), "192.0.2.3".parse::<IpAddr>().unwrap());
    assert!(old.sequence().take(1).is_err(), "the old one sends nothing more");
    assert_eq!(new.sequence().take(1).unwrap().first, 6);
    let taken = |number| new.replay().check(number).is_ok();
    assert_eq!([70, 69, 68, 10, 71].map(taken), [false, false, true, false, true]);
    assert_eq!(new.added(), old.added());
}

#[test]
fn migrate_to_a_taken_id_changes_nothing() {
    let mut stage = Stage::new();
    stage.ask(&policy());
    let command = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
    let (_, mut request) =
        golden().into_iter().find(|(line, _)| line.starts_with(command)).unwrap();
    stage.ask(&request);
    request[16 + 56 + 3] = 4;
    assert_eq!(stage.ask(&request)[0].verdict(), Some((0, String::new())));
    let moved = migrate("10.1.0.0", 0, 1, &[ENTRY], &[]);
    assert_eq!(stage.ask(&moved)[0].verdict(), Some((61, String::new())), "ENODATA");
    let template = stage.database.snapshot().spd.iter().next().unwrap().templates().next().unwrap();
    assert_eq!(template.destination, "192.0.2.2".parse::<IpAddr>().unwrap());
    assert_eq!(stage.database.snapshot().sad.len(), 2);
}
