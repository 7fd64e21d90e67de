//! Accepted differences from the machine's kernel: what, why, and how to tell each from a fault.
//! Others fail. `docs/differences.md` has the same rows.

use crate::{
    kernel::{Kernel, against_the_kernel, comparable, hex, same},
    stage::{Answer, Stage, attribute, message},
};

/// A request and both answers.
pub(crate) struct Exchange<'a> {
    pub(crate) request: &'a [u8],
    pub(crate) ours: &'a [Answer],
    pub(crate) theirs: &'a [Answer],
}

/// One row.
pub(crate) struct Difference {
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
    /// Whether it is all that makes the answers differ.
    pub(crate) explains: fn(&Exchange<'_>) -> bool,
    /// A request that shows it.
    example: fn() -> Vec<u8>,
}

const NEW_SA: u16 = 0x10;
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
const UPD_POLICY: u16 = 0x19;
const UPD_SA: u16 = 0x1a;
const ACQUIRE: u16 = 0x17;
const MIGRATE: u16 = 0x21;
const NEW_SAD_INFO: u16 = 0x22;
const NEW_SPD_INFO: u16 = 0x24;
const MIGRATE_STATE: u16 = 0x29;
const NOT_SUPPORTED: i32 = 95;
const EINVAL: i32 = 22;
/// `ENOSYS`, `EPROTONOSUPPORT`
const NOT_FOUND: [i32; 2] = [38, 93];
/// `NLM_F_ACK_TLVS`
const HAS_WORDS: u16 = 0x200;

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        what: "GETSADINFO, GETSPDINFO: how many hash buckets there are",
        why: "Ours are no hash tables; the number is what Linux would have grown to",
        explains: |exchange| {
            let without = |answers: &[Answer]| {
                let mut answers = answers.to_vec();
                answers.iter_mut().for_each(|answer| match answer.kind {
                    NEW_SAD_INFO => answer.body[16..20].fill(0),
                    NEW_SPD_INFO => answer.body[36..40].fill(0),
                    _ => {}
                });
                comparable(&answers)
            };
            without(exchange.ours) == without(exchange.theirs)
        },
        example: || message(0x25, 5, &[0; 4]),
    },
    Difference {
        what: "NEWSPDINFO with hash thresholds: the success comes with a warning",
        why: "They are kept and shown, and as in Linux all policies are sorted anew; but what tells them apart is found, not told",
        explains: |exchange| {
            let without = |answers: &[Answer]| {
                let text = |answer: &Answer| match answer.verdict() {
                    Some((0, text)) if text.starts_with("Hash thresholds") => {
                        (answer.flags & !HAS_WORDS, String::new())
                    }
                    verdict => (answer.flags, format!("{verdict:?} {}", hex(&answer.body))),
                };
                answers.iter().map(text).collect::<Vec<_>>()
            };
            let all_well =
                |answers: &[Answer]| answers.iter().all(|answer| errno(answer) == Some(0));
            kind(exchange) == NEW_SPD_INFO
                && all_well(exchange.theirs)
                && without(exchange.ours).iter().all(|(_, text)| text.is_empty())
        },
        example: || message(NEW_SPD_INFO, 5, &[vec![0; 4], attribute(3, &[24, 16])].concat()),
    },
    Difference {
        what: "The three bytes of padding behind a selector's protocol are 0 in answers",
        why: "Linux gives back what the client had there by chance",
        explains: |exchange| {
            let without = |answers: &[Answer]| {
                let mut answers = answers.to_vec();
                let policies = answers.iter_mut().filter(|answer| answer.kind == NEW_POLICY);
                policies.for_each(|answer| answer.body[45..48].fill(0));
                comparable(&answers)
            };
            without(exchange.ours) == without(exchange.theirs)
        },
        example: || {
            let mut id = vec![0; 64];
            (id[40], id[45], id[60]) = (2, 9, 1);
            message(GET_POLICY, 5, &id)
        },
    },
    Difference {
        what: "Policies with an offload on a device that is none of uxfrm's are refused",
        why: "A kernel without CONFIG_XFRM_OFFLOAD takes no notice of the attribute",
        explains: |exchange| {
            let words =
                ["Policy offload is not supported", "Unrecognized flags in offload request"];
            about_policies(exchange)
                && has(exchange, 28)
                && says(exchange.ours, EINVAL).is_some_and(|text| words.contains(&text.as_str()))
        },
        example: || policy(&attribute(28, &[1, 0, 0, 0, 4, 0, 0, 0])),
    },
    Difference {
        what: "Templates with algorithm masks other than all ones are refused (EOPNOTSUPP)",
        why: "A state is found by its reqid, mode and ends; nobody but PF_KEY programs sets the masks",
        explains: |exchange| refused_not_yet(exchange, "Algorithm masks in templates"),
        example: || policy(&attribute(5, &template(|bytes| bytes[52..56].fill(1)))),
    },
    Difference {
        what: "Templates with a share other than any are refused (EOPNOTSUPP)",
        why: "Linux keeps and shows the number, and does nothing by it",
        explains: |exchange| refused_not_yet(exchange, "Sharing in templates"),
        example: || policy(&attribute(5, &template(|bytes| bytes[49] = 2))),
    },
    Difference {
        what: "ACQUIRE from a client is refused (EOPNOTSUPP)",
        why: "Linux makes a test message of it; here acquires come from packets",
        explains: |exchange| {
            kind(exchange) == ACQUIRE && says(exchange.ours, NOT_SUPPORTED).is_some()
        },
        example: || message(ACQUIRE, 5, &[0; 280]),
    },
    Difference {
        what: "MIGRATE to an address family that there is none of finds no state (ENODATA)",
        why: "Linux takes it, and has a template of no family from then on",
        explains: |exchange| {
            kind(exchange) == MIGRATE
                && says(exchange.ours, 61).is_some()
                && errno_of(exchange.theirs) == Some(0)
        },
        example: || {
            let mut id = vec![0; 64];
            id[40] = 2;
            id[60] = 1;
            let mut entry =
                [vec![192, 0, 2, 2], vec![0; 12], vec![192, 0, 2, 1], vec![0; 12]].concat();
            entry.extend([entry.clone(), vec![50, 1, 0, 0, 0, 0, 0, 0, 2, 0, 7, 0]].concat());
            message(MIGRATE, 5, &[id, attribute(17, &entry)].concat())
        },
    },
    Difference {
        what: "MIGRATE_STATE is there",
        why: "Linux has it from 7.2 on; older ones say EINVAL",
        explains: |exchange| {
            kind(exchange) == MIGRATE_STATE
                && errno_of(exchange.theirs) == Some(EINVAL)
                && errno_of(exchange.ours).is_some_and(|errno| errno != 0)
        },
        example: || {
            let mut body = vec![0; 132];
            body[19] = 1;
            body[20] = 2;
            body[22] = 50;
            body[128] = 2;
            message(MIGRATE_STATE, 5, &body)
        },
    },
    Difference {
        what: "States are there",
        why: "The machine's kernel has no ESP: it checks a request, and then finds no algorithm or type",
        explains: |exchange| {
            about_states(exchange)
                && errno_of(exchange.theirs).is_some_and(|errno| NOT_FOUND.contains(&errno))
        },
        example: || {
            let mut body = vec![0; 224];
            body[56..60].copy_from_slice(&[192, 0, 2, 2]);
            body[75] = 1;
            body[76] = 50;
            body[80..84].copy_from_slice(&[192, 0, 2, 1]);
            body[212] = 2;
            body[214] = 1;
            let mut cipher = b"cipher_null".to_vec();
            cipher.resize(68, 0);
            let mut auth = b"hmac(sha1)".to_vec();
            auth.resize(64, 0);
            auth.extend(160_u32.to_ne_bytes());
            auth.extend([7; 20]);
            message(NEW_SA, 5, &[body, attribute(2, &cipher), attribute(1, &auth)].concat())
        },
    },
    Difference {
        what: "ALLOCSPI for IPComp is refused",
        why: "No state of it can follow, and a key manager that has no CPI goes on without compression",
        explains: |exchange| {
            kind(exchange) == 0x16
                && says(exchange.ours, NOT_FOUND[1]).is_some_and(|text| text.starts_with("IPComp"))
        },
        example: || {
            let mut body = vec![0; 232];
            body[56..60].copy_from_slice(&[192, 0, 2, 2]);
            body[76] = 108;
            body[80..84].copy_from_slice(&[192, 0, 2, 1]);
            body[212..214].copy_from_slice(&2_u16.to_ne_bytes());
            body[224..228].copy_from_slice(&0x100_u32.to_ne_bytes());
            body[228..232].copy_from_slice(&0x200_u32.to_ne_bytes());
            message(0x16, 5, &body)
        },
    },
];

/// The row that explains why the answers are not the same.
pub(crate) fn explanation(exchange: &Exchange<'_>) -> Option<&'static Difference> {
    DIFFERENCES.iter().find(|row| (row.explains)(exchange))
}

fn kind(exchange: &Exchange<'_>) -> u16 {
    exchange.request.get(4..6).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
}

fn about_policies(exchange: &Exchange<'_>) -> bool {
    [NEW_POLICY, UPD_POLICY].contains(&kind(exchange))
}

fn about_states(exchange: &Exchange<'_>) -> bool {
    [NEW_SA, UPD_SA].contains(&kind(exchange))
}

/// Whether a request about a policy has an attribute.
fn has(exchange: &Exchange<'_>, wanted: u16) -> bool {
    let attributes = exchange.request.get(16 + 168..).unwrap_or_default();
    uxfrm_netlink::RawAttributes::of(attributes).any(|one| one.kind == wanted)
}

fn refused_not_yet(exchange: &Exchange<'_>, begins: &str) -> bool {
    about_policies(exchange)
        && says(exchange.ours, NOT_SUPPORTED).is_some_and(|text| text.starts_with(begins))
}

fn errno(answer: &Answer) -> Option<i32> {
    answer.verdict().map(|(errno, _)| errno)
}

/// The errno of the one answer.
fn errno_of(answers: &[Answer]) -> Option<i32> {
    answers.first().and_then(errno)
}

/// The words that come with an errno.
fn says(answers: &[Answer], errno: i32) -> Option<String> {
    let verdict = answers.first().and_then(Answer::verdict);
    verdict.filter(|(found, _)| *found == errno).map(|(_, text)| text)
}

/// A policy out from anywhere to anywhere, whose selector has padding.
fn policy(more: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 168];
    body[40] = 2;
    body[45] = 9;
    body[56..88].fill(255);
    body[160] = 1;
    message(NEW_POLICY, 5, &[body, more.to_vec()].concat())
}

fn template(fit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&[192, 0, 2, 2]);
    bytes[20] = 50;
    bytes[24] = 2;
    bytes[28..32].copy_from_slice(&[192, 0, 2, 1]);
    bytes[48] = 1;
    bytes[52..64].fill(255);
    fit(&mut bytes);
    bytes
}

/// The kernel's hash tables grow some time after policies were added, and do not shrink.
fn grow_and_empty(kernel: &Kernel, stage: &mut Stage) {
    for host in 0..64 {
        let mut request = policy(&[]);
        request[16] = host;
        request[16 + 42] = 8;
        same(kernel, stage, "one of many", &request).unwrap();
    }
    let buckets = || kernel.ask(&message(0x25, 5, &[0; 4]))[0].body[36];
    let grown = (0..5000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        buckets() > 7
    });
    assert!(grown, "64 policies, and the kernel's table is as small as ever");
    let flush = message(0x1d, 5, &attribute(16, &[0; 6]));
    same(kernel, stage, "flush", &flush).unwrap();
}

/// A row that shows nothing any more is to go, and a row must not be needed to explain another's.
#[test]
fn each_difference_is_shown_by_its_example() {
    against_the_kernel(|kernel| {
        let mut stage = Stage::new();
        grow_and_empty(kernel, &mut stage);
        let there = policy(&attribute(5, &template(|_| {})));
        same(kernel, &mut stage, "a policy for others to meet", &there).unwrap();
        for row in DIFFERENCES {
            let request = (row.example)();
            let (theirs, ours) = (kernel.ask(&request), stage.ask(&request));
            let exchange = Exchange { request: &request, ours: &ours, theirs: &theirs };
            let found = explanation(&exchange).map(|found| found.what);
            assert_eq!(found, Some(row.what), "{ours:?}\n{theirs:?}");
            assert_ne!(comparable(&ours), comparable(&theirs), "{}: no difference", row.what);
        }
    });
}

/// Users read the same.
#[test]
fn differences_page_has_the_same_rows() {
    let page = include_str!("../../../../docs/differences.md");
    for Difference { what, why, .. } in DIFFERENCES {
        assert!(page.contains(&format!("| {what} | {why} |")), "docs/differences.md lacks: {what}");
    }
}
