//! Counters of states: NEWAE, GETAE, aevents, and the window in answers.

use uxfrm_netlink::{Groups, Outbox, RawAttributes, SocketOptions};

use crate::stage::{Answer, LISTENER, Stage, attribute, golden, message, take_apart};

const NEW_AE: u16 = 0x1e;
const GET_AE: u16 = 0x1f;
/// `NLM_F_REPLACE | NLM_F_ACK | NLM_F_REQUEST`.
const REPLACE: u16 = 0x105;
const LIFETIME: u16 = 9;
const REPLAY: u16 = 10;
const PACKETS: u16 = 11;
const TIMER: u16 = 12;
const ESN: u16 = 23;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// One state: SPI 0x1000 has a window of 64, 0x1001 one of 32 and a mark.
fn stage(spi: &str) -> Stage {
    let mut stage = Stage::new();
    let command = format!("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi {spi}");
    let (_, mut request) =
        golden().into_iter().find(|(line, _)| line.starts_with(&command)).unwrap();
    if spi == "0x1001" {
        request[16 + 215] = 32;
    }
    assert_eq!(stage.ask(&request)[0].verdict(), Some((0, String::new())));
    stage.heard.clear();
    stage
}

fn aevent(kind: u16, flags: u16, spi: u32, wanted: u32, attributes: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 48];
    body[..4].copy_from_slice(&[192, 0, 2, 2]);
    body[16..20].copy_from_slice(&spi.to_be_bytes());
    body[20..22].copy_from_slice(&2_u16.to_ne_bytes());
    body[22] = 50;
    body[40..44].copy_from_slice(&wanted.to_ne_bytes());
    body.extend(attribute(21, &words(&[3, 7])));
    body.extend(attributes);
    message(kind, flags, &body)
}

fn value(answer: &Answer, kind: u16) -> Vec<u8> {
    let found = RawAttributes::of(&answer.body[48..]).find(|attribute| attribute.kind == kind);
    found.unwrap_or_else(|| panic!("no attribute {kind}")).value.to_vec()
}

/// What is wrong with a NEWAE, in the kernel's order.
#[test]
fn newae_checks_are_the_kernels() {
    let replay = attribute(REPLAY, &words(&[0, 0, 0]));
    let longer =
        |window, words_: u32| attribute(ESN, &words(&[words_, 0, 0, 0, 0, window, 0, 0, 0, 0]));
    let table: [(u16, u32, Vec<u8>, i32, &str); 7] = [
        (REPLACE, 0x1000, Vec::new(), 22, "Missing required attribute for AE"),
        (5, 0x1000, replay.clone(), 22, "NLM_F_REPLACE flag is required"),
        (REPLACE, 0x9999, replay, 3, ""),
        (REPLACE, 0x1000, longer(64, 5), 22, "ESN attribute is too short"),
        (
            REPLACE,
            0x1000,
            longer(64, 4),
            22,
            "New ESN size doesn't match the existing SA's ESN size",
        ),
        (REPLACE, 0x1000, longer(65, 2), 22, "ESN replay window is longer than the bitmap"),
        (REPLACE, 0x1000, longer(33, 2), 95, "The replay window of a state can't change"),
    ];
    let mut stage = stage("0x1000");
    for (flags, spi, attributes, errno, text) in table {
        let answer = stage.ask(&aevent(NEW_AE, flags, spi, 0, &attributes));
        assert_eq!(answer[0].verdict(), Some((errno, text.to_owned())));
    }
    assert!(stage.heard().is_empty());
}

#[test]
fn newae_sets_counters_and_getae_returns_them() {
    let mut stage = stage("0x1001");
    let usage: Vec<u8> = [700_u64, 7, crate::stage::EPOCH + 1, 0].map(u64::to_ne_bytes).concat();
    let attributes = [
        attribute(REPLAY, &words(&[9, 100, 0b1011])),
        attribute(LIFETIME, &usage),
        attribute(PACKETS, &words(&[50])),
        attribute(TIMER, &words(&[600])),
    ];
    let set = aevent(NEW_AE, REPLACE, 0x1001, 0, &attributes.concat());
    assert_eq!(stage.ask(&set)[0].verdict(), Some((0, String::new())));
    let heard = std::mem::take(&mut stage.heard);
    let heard = take_apart(&heard[0]).remove(0);
    assert_eq!((heard.kind, heard.body[40]), (NEW_AE, 64), "all are told, because of an update");
    let told = stage.ask(&aevent(GET_AE, 1, 0x1001, 9, &[])).remove(0);
    assert_eq!(value(&told, REPLAY), words(&[9, 100, 0b1011]));
    assert_eq!((value(&told, PACKETS), value(&told, TIMER)), (words(&[50]), words(&[600])));
    assert_eq!(value(&told, LIFETIME), usage);
    let sa = stage.database.snapshot().sad.iter().next().unwrap().clone();
    assert_eq!(sa.sequence().take(1).unwrap().first, 10, "numbers go on");
    assert!(sa.replay().check(100).is_err() && sa.replay().check(98).is_ok());
}

/// Promise 3: what was sent is not sent again, whatever a client says.
#[test]
fn newae_never_lowers_sequence_numbers() {
    let mut stage = stage("0x1001");
    let set = |stage: &mut Stage, sent, received| {
        let replay = attribute(REPLAY, &words(&[sent, received, 0]));
        stage.ask(&aevent(NEW_AE, REPLACE, 0x1001, 0, &replay))[0].verdict().unwrap().0
    };
    assert_eq!(set(&mut stage, 9, 100), 0);
    assert_eq!(
        [set(&mut stage, 8, 100), set(&mut stage, 9, 99), set(&mut stage, 9, 100)],
        [22, 22, 0]
    );
    let sa = stage.database.snapshot().sad.iter().next().unwrap().clone();
    assert_eq!((sa.sequence().last(), sa.replay().highest()), (9, 100));
}

/// As in `xfrm_update_ae_params`, counters of the other form are accepted and ignored.
#[test]
fn newae_with_other_counter_form_changes_nothing() {
    let short = attribute(REPLAY, &words(&[9, 100, 0b1011]));
    let long = attribute(ESN, &words(&[2, 9, 100, 0, 0, 64, 3, 0]));
    let both = [long.clone(), short.clone()].concat();
    for (spi, attributes, heeded) in [
        ("0x1000", &short, false),
        ("0x1001", &long, false),
        ("0x1000", &long, true),
        ("0x1001", &short, true),
        ("0x1000", &both, true),
        ("0x1001", &both, true),
    ] {
        let mut stage = stage(spi);
        let number = u32::from_str_radix(&spi[2..], 16).unwrap();
        let set = aevent(NEW_AE, REPLACE, number, 0, attributes);
        assert_eq!(stage.ask(&set)[0].verdict(), Some((0, String::new())));
        assert_eq!(stage.heard.len(), 1, "all are told");
        let sa = stage.database.snapshot().sad.iter().next().unwrap().clone();
        let counters = if heeded { (9, 100) } else { (0, 0) };
        assert_eq!((sa.sequence().last(), sa.highest_received()), counters, "{spi}");
    }
}

#[test]
fn long_replay_window_is_returned_bit_by_bit() {
    let mut stage = stage("0x1000");
    let state = words(&[2, 0, 70, 0, 3, 64, 0x8000_0001, 0x20]);
    let set = aevent(NEW_AE, REPLACE, 0x1000, 0, &attribute(ESN, &state));
    assert_eq!(stage.ask(&set)[0].verdict(), Some((0, String::new())));
    let told = stage.ask(&aevent(GET_AE, 1, 0x1000, 0, &[])).remove(0);
    assert_eq!(value(&told, ESN), state);
}

#[test]
fn aevents_are_sent_by_packet_and_time_thresholds() {
    let mut stage = stage("0x1001");
    let snapshot = stage.database.snapshot();
    let sa = snapshot.sad.iter().next().unwrap();
    let look = |stage: &mut Stage, millis: u64| {
        let mut out = Outbox::default();
        stage.now = uxfrm_engine::Moment(stage.now.0 + millis * 1_000_000);
        let due = stage.server.poll_counters().unwrap();
        stage.server.notify_counters(&snapshot, stage.now, &mut out);
        assert!(stage.server.poll_counters().unwrap() > due || due > stage.now);
        stage.sort(&mut out);
        let heard = std::mem::take(&mut stage.heard);
        heard.iter().map(|bytes| take_apart(bytes).remove(0).body[40]).collect::<Vec<_>>()
    };
    assert_eq!(look(&mut stage, 100), []);
    sa.sequence().take(3).unwrap();
    assert_eq!(look(&mut stage, 99), [], "a tenth of a second between looks");
    assert_eq!(look(&mut stage, 1), [16], "more than two packets");
    sa.sequence().take(1).unwrap();
    assert_eq!(look(&mut stage, 500), [], "one packet, half a second");
    assert_eq!(look(&mut stage, 500), [32], "one packet, a second");
    assert_eq!(look(&mut stage, 5000), [], "nothing new");
    stage.server.leave(LISTENER);
    stage.server.join(LISTENER, Groups::SA, SocketOptions::empty());
    assert_eq!(stage.server.poll_counters(), None, "nobody listens, nothing is looked at");
}
