//! Dumps of policies while these come and go. The machine's kernel is asked the same.

use std::sync::Arc;

use netlink_sys::{Socket, protocols::NETLINK_XFRM};
use uxfrm_engine::Database;
use uxfrm_netlink::{Groups, Outbox, SocketOptions};

use crate::kernel::{Kernel, against_the_kernel};
use crate::stage::{Answer, CLIENT, Stage, attribute, message};

const NEW_POLICY: u16 = 0x13;
const DELETE_POLICY: u16 = 0x14;
const UPDATE_POLICY: u16 = 0x19;
const FLUSH_POLICY: u16 = 0x1d;
const DONE: u16 = 3;
/// More than a datagram shows, of ours and of the kernel's.
const POLICIES: u8 = 200;

#[test]
fn policy_dump_shows_changes_meanwhile_as_the_kernel() {
    against_the_kernel(|kernel| {
        // The first datagrams of both show more than none and less than half.
        for changes in [
            vec![],
            vec![(DELETE_POLICY, 0), (DELETE_POLICY, 7), (DELETE_POLICY, 50)],
            vec![(NEW_POLICY, 201), (NEW_POLICY, 202)],
            vec![(UPDATE_POLICY, 0), (UPDATE_POLICY, 50), (UPDATE_POLICY, 199)],
            vec![(DELETE_POLICY, 3), (NEW_POLICY, 3), (DELETE_POLICY, 198), (NEW_POLICY, 198)],
            vec![(UPDATE_POLICY, 9), (DELETE_POLICY, 9), (UPDATE_POLICY, 9), (UPDATE_POLICY, 9)],
            (0..POLICIES).map(|number| (DELETE_POLICY, number)).collect(),
            vec![(FLUSH_POLICY, 0), (NEW_POLICY, 1)],
        ] {
            let mut stage = Stage::new();
            let all = (0..POLICIES).map(|number| request(NEW_POLICY, number));
            for request in [request(FLUSH_POLICY, 0)].into_iter().chain(all) {
                both(kernel, &mut stage, &request);
            }
            let mut out = begin(&mut stage);
            let mut socket = Socket::new(NETLINK_XFRM).unwrap();
            socket.bind_auto().unwrap();
            Kernel::send(&socket, &dump());
            changes.iter().for_each(|(kind, of)| both(kernel, &mut stage, &request(*kind, *of)));
            let theirs = shown(&Kernel::answers(&socket));
            let ours = shown(&finish(&mut stage, &mut out));
            // What had been shown before the changes depends on how much a datagram takes.
            let rest = |shown: &[u8]| -> Vec<u8> {
                shown.iter().copied().filter(|number| *number < POLICIES / 2).collect()
            };
            assert_eq!((rest(&ours), ours[0]), (rest(&theirs), theirs[0]), "{changes:?}");
            assert_eq!(new(&ours), new(&theirs), "{changes:?}");
            let after = (shown(&stage.ask(&dump())), shown(&kernel.ask(&dump())));
            assert_eq!(after.0, after.1, "ours, the kernel's, after {changes:?}");
        }
    });
}

#[test]
fn dump_continues_when_client_changes_groups() {
    let mut stage = Stage::new();
    (0..POLICIES).for_each(|number| drop(stage.ask(&request(NEW_POLICY, number))));
    let mut out = begin(&mut stage);
    for groups in [Groups::SA | Groups::EXPIRE, Groups::EXPIRE, Groups::empty()] {
        stage.server.join(CLIENT, groups, SocketOptions::EXT_ACK);
    }
    assert_eq!(shown(&finish(&mut stage, &mut out)).len(), usize::from(POLICIES));
    let answers = stage.ask(&request(NEW_POLICY, 201));
    assert_eq!(answers.len(), 1, "it listens to nothing any more");
}

/// `uxfrm xfrm -batch`: many lines are on their way when one is refused.
#[test]
fn chained_request_behind_refusal_is_skipped() {
    const CHAINED: u16 = 0x4000;
    let flagged = |number: u8, flags: u16| {
        let mut request = request(NEW_POLICY, number);
        let old = u16::from_ne_bytes([request[6], request[7]]) & !4;
        request[6..8].copy_from_slice(&(old | flags).to_ne_bytes());
        request
    };
    let ack = 4;
    let many = [
        flagged(1, CHAINED),
        flagged(1, CHAINED),
        flagged(2, CHAINED),
        flagged(3, 0),
        flagged(4, CHAINED | ack),
    ];
    for (options, errnos, stand) in [
        (SocketOptions::CHAINS, vec![17, 125], vec![3, 1]),
        (SocketOptions::empty(), vec![17, 0], vec![4, 3, 2, 1]),
    ] {
        let mut stage = Stage::new();
        stage.server.join(CLIENT, Groups::empty(), options);
        let answers = stage.ask(&many.concat());
        let verdicts = answers.iter().map(|answer| answer.verdict().unwrap().0);
        assert_eq!(verdicts.collect::<Vec<_>>(), errnos);
        let later = stage.ask(&flagged(5, CHAINED | ack))[0].verdict().unwrap().0;
        assert_eq!(later, errnos[1], "in another datagram");
        let stand: Vec<_> = [5].into_iter().filter(|_| later == 0).chain(stand).collect();
        assert_eq!(shown(&stage.ask(&dump())), stand);
    }
}

#[test]
fn policy_dump_holds_no_policy() {
    let mut stage = Stage::new();
    (0..POLICIES).for_each(|number| drop(stage.ask(&request(NEW_POLICY, number))));
    let held = |database: &Database| -> Vec<usize> {
        database.current().spd.iter().map(Arc::strong_count).collect()
    };
    let before = held(&stage.database);
    let mut out = begin(&mut stage);
    assert_eq!(held(&stage.database), before);
    stage.ask_beside(&request(FLUSH_POLICY, 0));
    let answers = finish(&mut stage, &mut out);
    assert!((2..usize::from(POLICIES)).contains(&answers.len()), "{}", answers.len());
    assert_eq!(answers.last().map(|last| last.kind), Some(DONE));
}

/// A dump of which one datagram is there.
fn begin(stage: &mut Stage) -> Outbox {
    let mut out = Outbox::default();
    stage.server.handle(CLIENT, &dump(), &mut stage.database, stage.now, &mut out);
    assert!(stage.server.is_dumping(CLIENT));
    out
}

fn finish(stage: &mut Stage, out: &mut Outbox) -> Vec<Answer> {
    while stage.server.is_dumping(CLIENT) {
        stage.server.resume(CLIENT, &stage.database, out);
    }
    stage.sort(out)
}

fn both(kernel: &Kernel, stage: &mut Stage, request: &[u8]) {
    let verdicts = [kernel.ask(request), stage.ask_beside(request)];
    let errnos = verdicts.map(|answers| answers.iter().find_map(Answer::verdict));
    assert_eq!(errnos[0], Some((0, String::new())));
    assert_eq!(errnos[0], errnos[1]);
}

/// Which policies were shown, by the last byte of the destination.
fn shown(answers: &[Answer]) -> Vec<u8> {
    let policies = answers.iter().filter(|answer| answer.kind == NEW_POLICY);
    policies.map(|policy| policy.body[3]).collect()
}

fn new(shown: &[u8]) -> Vec<u8> {
    shown.iter().copied().filter(|number| *number >= POLICIES).collect()
}

fn dump() -> Vec<u8> {
    message(0x15, 0x301, &[])
}

/// What is to happen to a policy of that number, or to all.
fn request(kind: u16, number: u8) -> Vec<u8> {
    let mut selector = vec![0; 56];
    selector[..4].copy_from_slice(&[10, 0, 0, number]);
    selector[40] = 2;
    selector[42] = 32;
    match kind {
        NEW_POLICY | UPDATE_POLICY => {
            let mut info = [selector, vec![255; 32], vec![0; 80]].concat();
            info[160] = 1;
            message(kind, 5, &info)
        }
        DELETE_POLICY => message(kind, 5, &[selector, vec![0, 0, 0, 0, 1, 0, 0, 0]].concat()),
        _ => message(kind, 5, &attribute(16, &[0; 6])),
    }
}
