//! Compares with the machine's kernel in a network namespace: errno, extended ACK, answers and
//! dumps. Needs root and a kernel with XFRM_USER and SUB_POLICY; no ESP.
//!
//! Each difference that stays is a row of [`crate::differences`]; any other fails.

use std::thread;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_XFRM};
use nix::sched::CloneFlags;
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use uxfrm_netlink::{Groups, SocketOptions};

use crate::differences::{Exchange, explanation};
use crate::stage::{Answer, CLIENT, Stage, attribute, golden, message, take_apart};

const NEW_SA: u16 = 0x10;
const NEW_POLICY: u16 = 0x13;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `MSG_DONTWAIT`.
const DONT_WAIT: i32 = 0x40;

/// The kernel's XFRM of a namespace that ends with the thread.
pub(crate) struct Kernel(Socket);

impl Kernel {
    fn new() -> Result<Self, String> {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
        let open = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            socket.bind_auto()?;
            socket.set_ext_ack(true).map(|()| socket)
        };
        let no_xfrm = |error: std::io::Error| format!("no NETLINK_XFRM in this kernel: {error}");
        open().map(Self).map_err(no_xfrm)
    }

    pub(crate) fn ask(&self, request: &[u8]) -> Vec<Answer> {
        Self::of(&self.0, request)
    }

    fn of(socket: &Socket, request: &[u8]) -> Vec<Answer> {
        Self::send(socket, request);
        Self::answers(socket)
    }

    pub(crate) fn send(socket: &Socket, request: &[u8]) {
        socket.send_to(request, &SocketAddr::new(0, 0), 0).unwrap();
    }

    /// All that there are to what was sent.
    pub(crate) fn answers(socket: &Socket) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let mut bytes = Vec::with_capacity(1 << 16);
            // Answers are there before the send returns; only a dump goes on while it is read.
            if socket.recv(&mut bytes, DONT_WAIT).is_err() {
                return answers;
            }
            answers.extend(take_apart(&bytes));
        }
    }
}

/// Runs `test` in a thread with a network namespace of its own, or says why it cannot.
pub(crate) fn against_the_kernel(test: impl FnOnce(&Kernel) + Send + 'static) {
    let ended = thread::spawn(move || Kernel::new().map(|kernel| test(&kernel))).join();
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => {
            assert!(std::env::var_os("CI").is_none(), "{reason}");
            eprintln!("not run: {reason}");
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What of an answer must be the same: all but times, port ids and what is random.
pub(crate) fn comparable(answers: &[Answer]) -> Vec<String> {
    answers
        .iter()
        .map(|answer| {
            let mut body = answer.body.clone();
            let times = match answer.kind {
                NEW_SA => Some(176..192),
                NEW_POLICY => Some(136..152),
                _ => None,
            };
            times.into_iter().for_each(|range| body[range].fill(0));
            if answer.kind == ERROR {
                body.clear();
            }
            let Answer { kind, flags, .. } = answer;
            let verdict = answer.verdict();
            format!("{kind:#x} {flags:#x} {verdict:?} {}", hex(&body))
        })
        .collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether both have the same databases after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Together {
    Yes,
    /// One took what the other refused.
    No,
}

/// Asks both and compares; differences must be rows of
/// [`DIFFERENCES`](crate::differences::DIFFERENCES).
pub(crate) fn same(
    kernel: &Kernel,
    stage: &mut Stage,
    what: &str,
    request: &[u8],
) -> Result<Together, TestCaseError> {
    let (theirs, ours) = (kernel.ask(request), stage.ask(request));
    prop_assert!(ours.iter().all(|answer| answer.pid == CLIENT.port));
    let exchange = Exchange { request, ours: &ours, theirs: &theirs };
    if comparable(&ours) != comparable(&theirs) && explanation(&exchange).is_none() {
        prop_assert_eq!(comparable(&ours), comparable(&theirs), "ours, the kernel's: {}", what);
    }
    let took =
        |answers: &[Answer]| answers.first().and_then(Answer::verdict).map(|(errno, _)| errno == 0);
    // The kernel makes a larval state first, and keeps it where it then finds no number for it.
    let keeps_larval = explanation(&exchange).is_some_and(|row| row.what.starts_with("ALLOCSPI"));
    Ok(if took(&ours) == took(&theirs) && !keeps_larval { Together::Yes } else { Together::No })
}

#[test]
fn hash_thresholds_are_returned_and_rebuild_the_classifier() {
    let mut stage = Stage::new();
    let asked = [vec![0; 4], attribute(3, &[24, 16])].concat();
    assert!(stage.database.take_rebuild().is_none());
    let (errno, text) = stage.ask(&message(0x24, 5, &asked))[0].verdict().unwrap();
    assert!(errno == 0 && text.contains("planned anew"), "{errno} {text}");
    let revised = stage.database.take_rebuild().map(uxfrm_engine::Rebuild::build);
    assert!(revised.is_some());
    stage.database.install_rebuilt(revised, uxfrm_engine::Moment(0));
    let wrong = [vec![0; 4], attribute(3, &[33, 16])].concat();
    assert_ne!(stage.ask(&message(0x24, 5, &wrong))[0].verdict().unwrap().0, 0);
    assert!(stage.database.take_rebuild().is_none(), "what is refused changes nothing");
    let shown = stage.ask(&message(0x25, 1, &[0; 4])).remove(0);
    let threshold = attribute(3, &[24, 16]);
    assert!(shown.body.windows(threshold.len()).any(|bytes| bytes == threshold));
    let nothing = stage.ask(&message(0x24, 5, &[0; 4]))[0].verdict();
    assert_eq!(nothing, Some((0, String::new())), "nobody asked for any");
}

#[test]
fn iproute2_requests_are_answered_as_by_the_kernel() {
    against_the_kernel(|kernel| {
        let mut stage = Stage::new();
        for (command, request) in golden() {
            // Random SPIs, and ESP itself, are not to be compared.
            let about_states = ["state add", "state update", "allocspi", "deleteall"];
            if !about_states.iter().any(|words| command.contains(words)) {
                same(kernel, &mut stage, &command, &request).unwrap();
            }
        }
    });
}

/// What is repeated of a request, and what is said of it, is the client's choice.
#[test]
fn acknowledgement_follows_socket_options() {
    against_the_kernel(|kernel| {
        let broken = message(0x14, 5, &[vec![0; 64], attribute(21, b"abc")].concat());
        let requests = [broken, message(0x14, 5, &[1; 65]), message(0x27, 5, &[2, 2, 2, 0, 9])];
        for options in [
            SocketOptions::empty(),
            SocketOptions::CAP_ACK,
            SocketOptions::EXT_ACK,
            SocketOptions::all(),
        ] {
            let mut socket = Socket::new(NETLINK_XFRM).unwrap();
            socket.bind_auto().unwrap();
            socket.set_ext_ack(options.contains(SocketOptions::EXT_ACK)).unwrap();
            socket.set_cap_ack(options.contains(SocketOptions::CAP_ACK)).unwrap();
            let mut stage = Stage::new();
            stage.server.join(CLIENT, Groups::empty(), options);
            for request in &requests {
                let whole = |answer: &Answer| (answer.kind, answer.flags, answer.body.clone());
                let theirs = Kernel::of(&socket, request);
                let theirs: Vec<_> = theirs.iter().map(whole).collect();
                let ours: Vec<_> = stage.ask(request).iter().map(whole).collect();
                assert_eq!(ours, theirs, "{options:?}");
            }
        }
        assert!(kernel.ask(&message(0x28, 5, &[0; 4])).len() == 2);
    });
}

#[test]
fn random_policies_are_answered_as_by_the_kernel() {
    against_the_kernel(|kernel| {
        let mut runner = runner(600);
        let requests = vec(request(), 1..40);
        let outcome = runner.run(&requests, |requests| {
            let mut stage = Stage::new();
            start_over(kernel);
            for request in &requests {
                if same(kernel, &mut stage, &hex(request), request)? == Together::No {
                    stage = Stage::new();
                    start_over(kernel);
                }
            }
            compare_dumps(kernel, &mut stage)
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    });
}

/// The kernel has no ESP, but it checks what it is given before it looks for it.
#[test]
fn broken_states_are_refused_as_by_the_kernel() {
    against_the_kernel(|kernel| {
        let outcome = runner(10_000).run(&state_request(), |request| {
            same(kernel, &mut Stage::new(), &hex(&request), &request).map(|_| ())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    });
}

/// Always the same requests; `UXFRM_VARY=1` draws others.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    if std::env::var_os("UXFRM_VARY").is_some() {
        return TestRunner::new(config);
    }
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// NEWSA or UPDSA with algorithms, replay protection and the options that directions forbid.
fn state_request() -> impl Strategy<Value = Vec<u8>> {
    let ids = (often(vec![50_u8], vec![51, 108, 60, 17, 0]), often(vec![2_u16, 10], vec![0, 7]));
    let selectors = (often(vec![0_u16, 2], vec![10, 5]), often(vec![0_u8, 24], vec![33, 130]));
    let words = (often(vec![0_u8, 1], vec![2, 3, 4, 5, 9]), often(vec![0_u8, 32], vec![200]));
    let flags = select(vec![0_u8, 1, 2, 4, 8, 16, 32, 128]);
    let head = (ids, selectors, words, flags).prop_map(
        |((protocol, family), (selector, prefix), (mode, window), flags)| {
            let mut bytes = vec![0; 224];
            bytes[40..42].copy_from_slice(&selector.to_ne_bytes());
            bytes[42] = prefix;
            bytes[56..60].copy_from_slice(&[192, 0, 2, 2]);
            bytes[74] = 1;
            bytes[76] = protocol;
            bytes[80..84].copy_from_slice(&[192, 0, 2, 1]);
            bytes[212..214].copy_from_slice(&family.to_ne_bytes());
            bytes[214..217].copy_from_slice(&[mode, window, flags]);
            bytes
        },
    );
    let algorithm = |kind: u16, extra: usize| {
        let names = select(vec!["rfc4106(gcm(aes))", "cbc(aes)", "hmac(sha1)", "digest_null", ""]);
        (names, select(vec![0_u32, 128, 160, 4000]), 0..24_usize).prop_map(
            move |(name, bits, key)| {
                let mut value = name.as_bytes().to_vec();
                value.resize(64, 0);
                value.extend(bits.to_ne_bytes());
                value.resize(68 + extra + key, 1);
                attribute(kind, &value)
            },
        )
    };
    let number = |kinds: Vec<u16>| {
        (select(kinds), select(vec![0_u32, 1, 2, 10_000]))
            .prop_map(|(kind, number)| attribute(kind, &number.to_ne_bytes()))
    };
    let replay = vec(select(vec![0_u32, 0, 0, 1, 32, 64, 129]), 3..8)
        .prop_map(|words| words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>());
    let option = prop_oneof![
        4 => algorithm(18, 4),
        2 => algorithm(2, 0),
        2 => algorithm(1, 0),
        2 => algorithm(20, 4),
        1 => algorithm(3, 0),
        4 => select(vec![0_u8, 1, 2, 3]).prop_map(|direction| attribute(33, &[direction])),
        3 => replay.clone().prop_map(|value| attribute(23, &value)),
        2 => replay.prop_map(|value| attribute(10, &value)),
        3 => number(vec![22, 24, 31, 32, 34, 35]),
        1 => number(vec![36, 38, 39, 40, 41]),
        1 => select(vec![[1_u16, 0], [9, 0]]).prop_map(|_| attribute(37, &[1, 0])),
        1 => Just(attribute(4, &[2, 0, 17, 148, 17, 148, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        1 => Just(attribute(14, &[1; 16])),
        1 => vec(any::<u8>(), 8..10).prop_map(|value| attribute(8, &value)),
    ];
    (select(vec![0x10_u16, 0x1a]), head, vec(option, 0..6)).prop_map(|(kind, head, options)| {
        message(kind, 5, &[vec![head], options].concat().concat())
    })
}

/// Flushes policies and SPIs, resets defaults and thresholds. Index numbers go on, so dumps are
/// compared without them.
fn start_over(kernel: &Kernel) {
    for kind in [0, 1] {
        kernel.ask(&message(0x1d, 5, &attribute(16, &[kind, 0, 0, 0, 0, 0])));
    }
    kernel.ask(&message(0x1c, 5, &[0]));
    kernel.ask(&message(0x27, 5, &[2, 2, 2]));
    let thresholds = [vec![0; 4], attribute(3, &[32, 32]), attribute(4, &[128, 128])].concat();
    kernel.ask(&message(0x24, 5, &thresholds));
}

fn compare_dumps(kernel: &Kernel, stage: &mut Stage) -> Result<(), TestCaseError> {
    for kind in [0x12, 0x15] {
        let dump = message(kind, 0x301, &[]);
        let without_index = |answers: &[Answer]| {
            let mut answers = answers.to_vec();
            answers
                .iter_mut()
                .filter(|answer| answer.kind == NEW_POLICY)
                .for_each(|answer| answer.body[156..160].fill(0));
            comparable(&answers)
        };
        let (theirs, ours) = (kernel.ask(&dump), stage.ask(&dump));
        prop_assert_eq!(without_index(&ours), without_index(&theirs), "ours, the kernel's dump");
        prop_assert_eq!(ours.last().map(|answer| answer.kind), Some(DONE));
    }
    Ok(())
}

/// A selector: few values, so that requests meet.
fn selector() -> impl Strategy<Value = Vec<u8>> {
    let families = prop_oneof![8 => Just(2_u16), 4 => Just(10), 1 => select(vec![0, 3, 255])];
    (
        families,
        0..3_u8,
        0..3_u8,
        select(vec![0, 8, 24, 32, 33, 64, 128, 129]),
        0..40_u8,
        select(vec![0, 6, 17]),
        select(vec![0, 80]),
    )
        .prop_map(|(family, to, from, to_len, from_len, protocol, port)| {
            let mut bytes = vec![0; 56];
            bytes[0..4].copy_from_slice(&[10, 1, to, 0]);
            bytes[16..20].copy_from_slice(&[10, 2, from, 0]);
            bytes[33] = port;
            bytes[34..36].fill(if port == 0 { 0 } else { 255 });
            bytes[40..42].copy_from_slice(&family.to_ne_bytes());
            bytes[42..45].copy_from_slice(&[
                to_len.min(if family == 2 { 33 } else { 129 }),
                from_len,
                protocol,
            ]);
            bytes
        })
}

fn often<T: Clone + std::fmt::Debug + 'static>(
    usual: Vec<T>,
    rare: Vec<T>,
) -> impl Strategy<Value = T> {
    prop_oneof![12 => select(usual), 1 => select(rare)]
}

fn policy() -> impl Strategy<Value = Vec<u8>> {
    let share = often(vec![0_u8], vec![1, 3, 4, 255]);
    let numbers = (
        0..3_u32,
        often(vec![0_u8, 1, 2], vec![3, 7]),
        often(vec![0_u8, 1], vec![2]),
        0..8_u8,
        share,
    );
    (selector(), numbers, vec(any::<u64>(), 8)).prop_map(
        |(selector, (priority, direction, action, flags, share), limits)| {
            let mut bytes = selector;
            // Limits by time would strike while the test runs.
            limits.iter().take(4).for_each(|limit| bytes.extend(limit.to_ne_bytes()));
            bytes.extend([0; 64]);
            bytes.extend(priority.to_ne_bytes());
            bytes.extend(0_u32.to_ne_bytes());
            bytes.extend([direction, action, flags, share, 0, 0, 0, 0]);
            bytes
        },
    )
}

fn template() -> impl Strategy<Value = Vec<u8>> {
    let protocol = often(vec![50_u8, 51, 108], vec![0, 17, 43, 60, 255]);
    (
        often(vec![2_u16, 0], vec![10, 7]),
        protocol,
        often(vec![0_u8, 1], vec![2, 3, 4, 5, 6, 200]),
        often(vec![0_u8], vec![1]),
        0..4_u32,
        (often(vec![0_u8], vec![1, 9]), often(vec![255_u8], vec![0, 7])),
    )
        .prop_map(|(family, protocol, mode, optional, reqid, (share, mask))| {
            let mut bytes = vec![0; 64];
            bytes[0..4].copy_from_slice(&[192, 0, 2, 2]);
            bytes[20] = protocol;
            bytes[24..26].copy_from_slice(&family.to_ne_bytes());
            bytes[28..32].copy_from_slice(&[192, 0, 2, 1]);
            bytes[44..48].copy_from_slice(&reqid.to_ne_bytes());
            bytes[48] = mode;
            bytes[49] = share;
            bytes[50] = optional;
            bytes[52..64].fill(mask);
            bytes
        })
}

/// Attributes that policies have, and some that they have not.
fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        4 => vec(template(), 0..8).prop_map(|all| attribute(5, &all.concat())),
        3 => select(vec![[1, 0, 0, 0, 255, 0, 0, 0], [1, 1, 0, 0, 255, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0; 8]]).prop_map(|mark| attribute(21, &mark)),
        3 => (0..3_u8).prop_map(|id| attribute(31, &[id, 0, 0, 0])),
        3 => often(vec![0_u8, 1], vec![2]).prop_map(|kind| attribute(16, &[kind, 0, 0, 0, 0, 0])),
        1 => (0..45_u16, vec(any::<u8>(), 0..5)).prop_map(|(kind, value)| attribute(kind, &value)),
        1 => often(vec![4_u8], vec![0, 1, 2, 6]).prop_map(|flags| attribute(28, &[1, 0, 0, 0, flags, 0, 0, 0])),
        1 => vec(any::<u8>(), 1..4),
    ];
    vec(one, 0..4).prop_map(|all| all.concat())
}

/// NEWSPDINFO has attributes of its own.
fn thresholds() -> impl Strategy<Value = Vec<u8>> {
    let value = vec(select(vec![0_u8, 16, 32, 33, 128, 129]), 1..4);
    let all = vec((0..6_u16, value).prop_map(|(kind, value)| attribute(kind, &value)), 0..3);
    all.prop_map(|all| [vec![0; 4], all.concat()].concat())
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(5_u16), 1 => Just(1_u16), 1 => Just(0x405_u16)];
    let id = (selector(), often(vec![0_u8, 1, 2], vec![3])).prop_map(|(selector, direction)| {
        [selector, vec![0, 0, 0, 0, direction, 0, 0, 0]].concat()
    });
    let spi = (
        select(vec![50_u8, 51, 108, 17]),
        select(vec![(0_u32, 0_u32), (5, 5), (9, 8), (7, 7), (0x20000, 0x20000)]),
        0..3_u8,
        select(vec![2_u8, 10]),
    )
        .prop_map(|(protocol, (min, max), reqid, family)| {
            let mut bytes = vec![0; 224];
            bytes[56..60].copy_from_slice(&[192, 0, 2, 2]);
            bytes[76] = protocol;
            bytes[80..84].copy_from_slice(&[192, 0, 2, 1]);
            bytes[208] = reqid;
            bytes[212] = family;
            bytes.extend(min.to_ne_bytes());
            bytes.extend(max.to_ne_bytes());
            bytes
        });
    let head = prop_oneof![
        8 => (select(vec![0x13_u16, 0x19]), policy()),
        3 => (select(vec![0x14_u16, 0x15]), id),
        1 => (Just(0x1b_u16), policy().prop_map(|policy| [policy, vec![0; 8]].concat())),
        1 => (Just(0x1d_u16), Just(Vec::new())),
        1 => (select(vec![0x27_u16, 0x28]), vec(0..4_u8, 3).prop_map(|mut all| { all.push(0); all })),
        1 => (select(vec![0x23_u16, 0x25]), Just(vec![1, 2, 3, 4])),
        1 => (Just(0x24_u16), thresholds()),
        2 => (Just(0x16_u16), spi),
        1 => (select(vec![0x11_u16, 0x12, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x26]), Just(vec![0; 64])),
        1 => (select(vec![0x17_u16, 0x29, 0x2a]), Just(vec![0; 280])),
    ];
    let cut = prop_oneof![20 => Just(None), 1 => any::<Index>().prop_map(Some)];
    (head, attributes(), flags, cut).prop_map(|((kind, head), attributes, flags, cut)| {
        let mut body = [head, attributes].concat();
        if let Some(cut) = cut.filter(|_| !body.is_empty()) {
            body.truncate(cut.index(body.len()));
        }
        message(kind, flags, &body)
    })
}
