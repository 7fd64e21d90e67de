//! What Debian's unmodified `ip xfrm` (6.1) sends is carried out and answered as it expects.

use crate::stage::{Answer, CLIENT, EPOCH, Stage, attribute, golden, message, take_apart};
use std::sync::Arc;

use uxfrm_engine::{Action, Event, IfId, Mark, Moment, SaId, SaProtocol, Spi, Transaction};
use uxfrm_netlink::Outbox;

const NEW_SA: u16 = 0x10;
const DEL_SA: u16 = 0x11;
const NEW_POLICY: u16 = 0x13;
const EXPIRE: u16 = 0x18;
const UPD_SA: u16 = 0x1a;
const FLUSH_SA: u16 = 0x1c;
const FLUSH_POLICY: u16 = 0x1d;
const DONE: u16 = 3;

fn request(start: &str) -> Vec<u8> {
    let found = golden().into_iter().find(|(command, _)| command.starts_with(start));
    found.unwrap_or_else(|| panic!("{start} was recorded")).1
}

fn well(answers: &[Answer]) {
    let verdicts: Vec<_> = answers.iter().map(Answer::verdict).collect();
    assert_eq!(verdicts, [Some((0, String::new()))]);
    assert_eq!((answers[0].seq, answers[0].pid, answers[0].flags), (7, CLIENT.port, 0x100));
}

fn u64_at(body: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(body[at..at + 8].try_into().unwrap())
}

#[test]
fn policy_dump_is_the_kernels() {
    let mut stage = Stage::new();
    let first = request("ip xfrm policy add src 10.0.0.0/24");
    well(&stage.ask(&first));
    well(&stage.ask(&request("ip xfrm policy add src fd00")));
    let dump = stage.ask(&request("ip xfrm policy list"));
    let kinds: Vec<_> = dump.iter().map(|answer| (answer.kind, answer.flags)).collect();
    assert_eq!(kinds, [(NEW_POLICY, 2), (NEW_POLICY, 2), (DONE, 2)]);
    assert_eq!((dump[0].body.len(), dump[1].body.len()), (180, 268), "the youngest first");
    // As asked for, but for the times, the index and `ptype`, which iproute2 did not send.
    let mut expected = first[16..].to_vec();
    expected[136..144].copy_from_slice(&(EPOCH + 1).to_ne_bytes());
    expected[156] = 1;
    let marks = expected.split_off(168 + 68);
    expected.extend(attribute(16, &[0; 6]));
    expected.extend(marks);
    assert_eq!(dump[1].body, expected);
    let one = stage.ask(&request("ip xfrm policy get"));
    assert_eq!((one.len(), &one[0].body), (1, &expected));
    assert_eq!(stage.heard(), [NEW_POLICY, NEW_POLICY]);
}

#[test]
fn policy_update_count_delete_and_flush() {
    let mut stage = Stage::new();
    well(&stage.ask(&request("ip xfrm policy add src 10.0.0.0/24")));
    let again = stage.ask(&request("ip xfrm policy add src 10.0.0.0/24"));
    assert_eq!(again[0].verdict(), Some((17, String::new())));
    well(&stage.ask(&request("ip xfrm policy update src fd00")));
    let count = stage.ask(&request("ip xfrm policy count"));
    assert_eq!(
        (count[0].kind, &count[0].body[4..20]),
        (0x24, &[28, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..])
    );
    well(&stage.ask(&request("ip xfrm policy delete src fd00")));
    let gone = stage.ask(&request("ip xfrm policy delete src fd00"));
    assert_eq!(gone[0].verdict(), Some((2, String::new())));
    well(&stage.ask(&request("ip xfrm policy flush")));
    well(&stage.ask(&request("ip xfrm policy flush")));
    assert_eq!(stage.heard(), [NEW_POLICY, 0x19, 0x14, FLUSH_POLICY], "flushing nothing is silent");
    assert_eq!(stage.database.snapshot().spd.iter().count(), 0);
}

#[test]
fn default_policy_is_set_and_notified() {
    let mut stage = Stage::new();
    well(&stage.ask(&request("ip xfrm policy setdefault in block")));
    let answer = stage.ask(&request("ip xfrm policy getdefault"));
    assert_eq!((answer[0].kind, &answer[0].body), (0x28, &vec![1, 2, 2, 0]));
    assert_eq!(stage.database.snapshot().spd.defaults().inbound, Action::Block);
    assert_eq!(stage.heard(), [0x28]);
}

#[test]
fn newsa_with_all_attributes_is_accepted() {
    let mut stage = Stage::new();
    well(
        &stage.ask(&request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000")),
    );
    well(
        &stage.ask(&request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001")),
    );
    let snapshot = stage.database.snapshot();
    let destination = "192.0.2.2".parse().unwrap();
    let find = |spi| {
        let id = SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp };
        snapshot.sad.with_id(id).next().unwrap()
    };
    let gcm = find(0x1000).to_config();
    assert_eq!((gcm.replay.window, gcm.reqid.0, gcm.transform.encryption_key.len()), (64, 16, 20));
    let cbc = find(0x1001).to_config();
    assert_eq!((cbc.transform.transform.icv_len(), cbc.if_id, cbc.mark.mask), (16, IfId(9), 7));
    assert_eq!((cbc.output_mark.value, cbc.output_mark.mask), (5, u32::MAX));
    assert_eq!((cbc.encap.unwrap().source_port, cbc.limits.packets.soft), (4500, 10));
}

#[test]
fn getsa_returns_the_attributes_of_newsa() {
    let mut stage = Stage::new();
    let sent = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
    well(&stage.ask(&sent));
    let answer = stage.ask(&request("ip xfrm state get"));
    assert_eq!((answer.len(), answer[0].kind), (1, NEW_SA));
    let (mut expected, mut body) = (sent[16..].to_vec(), answer[0].body.clone());
    assert_eq!(u64_at(&body, 176), EPOCH + 1, "add time");
    body[176..184].fill(0);
    // A selector without family gets the state's; iproute2 leaves byte 40 at 0, and omits the
    // bitmap.
    expected[40] = 2;
    expected.extend([0; 8]);
    let replay = 224 + 96;
    assert_eq!(expected[replay..replay + 4], [28, 0, 23, 0]);
    expected[replay] = 36;
    let sort = |body: &[u8]| {
        let all = uxfrm_netlink::RawAttributes::of(&body[224..]);
        let mut all: Vec<_> = all.map(|one| (one.kind, one.value.to_vec())).collect();
        all.sort();
        all
    };
    assert_eq!(body[..224], expected[..224]);
    assert_eq!(sort(&body), sort(&expected));
    assert_eq!(stage.heard(), [NEW_SA]);
}

#[test]
fn auth_algorithm_is_sent_in_both_attributes() {
    let mut stage = Stage::new();
    well(
        &stage.ask(&request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001")),
    );
    let dump = stage.ask(&request("ip xfrm state list"));
    let kinds: Vec<_> =
        uxfrm_netlink::RawAttributes::of(&dump[0].body[224..]).map(|one| one.kind).collect();
    assert_eq!(kinds, [1, 20, 2, 4, 21, 29, 30, 10, 31], "in the kernel's order");
}

#[test]
fn allocspi_then_updsa_completes_the_state() {
    let mut stage = Stage::new();
    let reserved = stage.ask(&request("ip xfrm state allocspi"));
    assert_eq!((reserved.len(), reserved[0].kind, reserved[0].body.len()), (1, NEW_SA, 240));
    let spi = u32::from_be_bytes(reserved[0].body[72..76].try_into().unwrap());
    assert!((0x100..=0x200).contains(&spi));
    assert_eq!(stage.ask(&request("ip xfrm state count"))[0].body[8..12], 1_u32.to_ne_bytes());
    let mut fill = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
    fill[16 + 72..16 + 76].copy_from_slice(&spi.to_be_bytes());
    assert_eq!(stage.ask(&fill)[0].verdict(), Some((17, String::new())), "NEWSA finds it there");
    fill[4] = 0x1a;
    well(&stage.ask(&fill));
    assert_eq!(stage.ask(&request("ip xfrm state count"))[0].body[8..12], 1_u32.to_ne_bytes());
    assert_eq!(stage.heard(), [UPD_SA]);
}

/// The older field for it has a bitmap of 32 bits (`net/xfrm/xfrm_user.c: copy_from_user_state`).
#[test]
fn replay_window_of_old_field_is_at_most_32() {
    for (asked, kept) in [(31, 31), (32, 32), (33, 32), (255, 32)] {
        let mut stage = Stage::new();
        let mut add = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001");
        add[16 + 215] = asked;
        well(&stage.ask(&add));
        let snapshot = stage.database.snapshot();
        let windows: Vec<_> = snapshot.sad.iter().map(|sa| sa.config().window).collect();
        assert_eq!(windows, [kept], "{asked}");
    }
}

#[test]
fn larval_state_expires_with_notification() {
    let mut stage = Stage::new();
    stage.ask(&request("ip xfrm state allocspi"));
    let due = stage.server.poll_timeout().unwrap();
    assert_eq!(due.as_secs(), 31);
    let mut out = Outbox::default();
    stage.server.handle_timeout(due, &mut out);
    stage.sort(&mut out);
    assert_eq!((stage.heard(), stage.server.poll_timeout()), (vec![EXPIRE], None));
}

#[test]
fn state_update_delete_and_flush() {
    let mut stage = Stage::new();
    let absent = stage.ask(&request("ip xfrm state delete"));
    assert_eq!(absent[0].verdict(), Some((3, String::new())));
    let add = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
    well(&stage.ask(&add));
    well(&stage.ask(&request("ip xfrm state update")));
    well(&stage.ask(&request("ip xfrm state delete")));
    well(&stage.ask(&add));
    well(&stage.ask(&request("ip xfrm state flush proto esp")));
    well(&stage.ask(&request("ip xfrm state flush")));
    assert_eq!(stage.heard(), [NEW_SA, UPD_SA, DEL_SA, NEW_SA, FLUSH_SA]);
}

/// As in the kernel, which resumes in its list: neither states deleted meanwhile nor new ones are
/// shown.
#[test]
fn state_dump_resumes_and_holds_no_state() {
    let mut stage = Stage::new();
    let add = |spi: u32| {
        let mut add = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
        add[16 + 72..16 + 76].copy_from_slice(&spi.to_be_bytes());
        add
    };
    (1..=100).for_each(|spi| well(&stage.ask(&add(spi))));
    let (mut out, now) = (Outbox::default(), stage.now);
    let list = request("ip xfrm state list");
    let oldest = |stage: &Stage| {
        let all = stage.database.current().sad.iter();
        all.map(|sa| (sa.id(), Arc::strong_count(sa))).min_by_key(|(id, _)| id.spi).unwrap()
    };
    let (held, snapshot) = (oldest(&stage), Arc::downgrade(&stage.database.snapshot()));
    stage.server.handle(CLIENT, &list, &mut stage.database, now, &mut out);
    assert_eq!(oldest(&stage), held);
    stage.server.handle(CLIENT, &list, &mut stage.database, now, &mut out);
    let mut answers = stage.sort(&mut out);
    let busy = answers.pop().and_then(|answer| answer.verdict());
    assert_eq!(busy, Some((16, String::new())), "one dump at a time");
    let spis = |answers: &[Answer]| -> Vec<u32> {
        let states = answers.iter().filter(|answer| answer.kind == NEW_SA);
        states.map(|one| u32::from_be_bytes(one.body[72..76].try_into().unwrap())).collect()
    };
    let mut missed = Vec::new();
    for part in 1.. {
        let (gone, _) = oldest(&stage);
        missed.extend((!spis(&answers).contains(&gone.spi.0)).then_some(gone.spi.0));
        let delete =
            |change: &mut Transaction<'_>| change.delete_sa(gone, Mark::default()).map(drop);
        stage.database.apply(now, delete).unwrap();
        stage.server.handle(CLIENT, &add(1000 + part), &mut stage.database, now, &mut out);
        well(&stage.sort(&mut out));
        assert_eq!(snapshot.strong_count(), 0, "nobody holds what was there when it began");
        stage.server.resume(CLIENT, &stage.database, &mut out);
        answers.extend(stage.sort(&mut out));
        if !stage.server.is_dumping(CLIENT) {
            break;
        }
    }
    let expected: Vec<u32> = (1..=100).rev().filter(|spi| !missed.contains(spi)).collect();
    assert_eq!((spis(&answers), answers.last().map(|last| last.kind)), (expected, Some(DONE)));
    assert!(missed.len() > 5);
}

/// Others are served between two looks at some of many states, whether these show any or not.
#[test]
fn filtered_dump_of_many_states_is_bounded_per_datagram() {
    let mut stage = Stage::new();
    let add = |destination: u8, spi: u32| {
        let mut add = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
        add[16 + 59] = destination;
        add[16 + 72..16 + 76].copy_from_slice(&spi.to_be_bytes());
        add
    };
    let many = 2000;
    well(&stage.ask(&add(9, 1)));
    (2..=many).for_each(|spi| well(&stage.ask(&add(2, spi))));
    for (destination, shown) in [(9, 1), (8, 0)] {
        let mut filter = [0; 36];
        filter[16..20].copy_from_slice(&[192, 0, 2, destination]);
        filter[32..].copy_from_slice(&[2, 0, 0, 32]);
        let list = message(0x12, 0x301, &attribute(26, &filter));
        let (mut out, mut steps) = (Outbox::default(), 1);
        stage.server.handle(CLIENT, &list, &mut stage.database, stage.now, &mut out);
        assert!(out.is_empty(), "nothing of {destination} is among the youngest");
        while stage.server.is_dumping(CLIENT) {
            stage.server.resume(CLIENT, &stage.database, &mut out);
            steps += 1;
        }
        let answers = stage.sort(&mut out);
        assert_eq!(answers.len() - 1, shown);
        assert_eq!(answers.last().map(|last| last.kind), Some(DONE));
        assert!((many / 500..many / 10).contains(&steps), "{steps} steps");
    }
}

#[test]
fn dump_filter_selects_states() {
    let mut stage = Stage::new();
    well(
        &stage.ask(&request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000")),
    );
    let count = |answers: &[Answer]| answers.len() - 1;
    assert_eq!(count(&stage.ask(&request("ip xfrm state list proto esp"))), 1);
    assert_eq!(count(&stage.ask(&request("ip xfrm state list src 192.0.2.0/24"))), 1);
    assert_eq!(count(&stage.ask(&message(0x12, 0x301, &attribute(25, &[51])))), 0);
    let mut filter = [0; 36];
    filter[..4].copy_from_slice(&[192, 0, 3, 0]);
    filter[32..35].copy_from_slice(&[2, 0, 24]);
    assert_eq!(count(&stage.ask(&message(0x12, 0x301, &attribute(26, &filter)))), 0);
    filter[34] = 200;
    let wrong = stage.ask(&message(0x12, 0x301, &attribute(26, &filter)));
    assert_eq!((wrong[0].kind, &wrong[0].body), (DONE, &(-22_i32).to_ne_bytes().to_vec()));
}

#[test]
fn expire_is_notified_from_the_old_snapshot() {
    let mut stage = Stage::new();
    well(
        &stage.ask(&request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000")),
    );
    stage.heard();
    let before = stage.database.snapshot();
    let id = before.sad.iter().next().unwrap().id();
    stage.ask(&request("ip xfrm state delete"));
    stage.heard();
    let mut out = Outbox::default();
    let (event, at) = (Event::SaHardLimit(id), Moment::from_secs(2));
    stage.server.announce(&event, &before, &mut stage.database, at, &mut out);
    stage.sort(&mut out);
    let expire = take_apart(&stage.heard[0]).remove(0);
    assert_eq!((expire.kind, expire.body[224]), (EXPIRE, 1));
}

/// IP-TFS is a mode that there is none of here; its options come with it.
#[test]
fn unsupported_attribute_is_refused() {
    let mut stage = Stage::new();
    let mut add = request("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000");
    add[16 + 214] = 5;
    add.extend(attribute(33, &[1]));
    let len = u32::try_from(add.len()).unwrap();
    add[..4].copy_from_slice(&len.to_ne_bytes());
    let refused = (93, "Requested mode not found".to_owned());
    assert_eq!(stage.ask(&add)[0].verdict(), Some(refused));
    assert!(stage.database.snapshot().sad.is_empty());
}
