//! Marks with bits outside their mask: 0x105 under 0xff. Linux clears these bits
//! (`__xfrm_state_insert`, `xfrm_policy_insert`), but not for states reserved by ALLOCSPI, which no
//! look-up finds then (seen with 6.1.176). `kernel.rs` compares policies, `judge.rs` packets.

use uxfrm_engine::{Mark, SaProtocol, Spi};

use crate::stage::{Answer, Stage, attribute, golden, message, take_apart};

const NEW_SA: u16 = 0x10;
const GET_SA: u16 = 0x12;
const ALLOC_SPI: u16 = 0x16;
const UPD_SA: u16 = 0x1a;
const DUMP: u16 = 0x305;

const EEXIST: i32 = 17;
const ESRCH: i32 = 3;

const WIDE: (u32, u32) = (0x105, 0xff);
const OWN: (u32, u32) = (5, 0xff);

fn attribute_of((value, mask): (u32, u32)) -> Vec<u8> {
    attribute(21, &[value.to_ne_bytes(), mask.to_ne_bytes()].concat())
}

/// A tunnel from 192.0.2.1 to 192.0.2.2 with SPI 0x1000.
fn tunnel(kind: u16, mark: (u32, u32)) -> Vec<u8> {
    let command = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
    let (_, request) = golden().into_iter().find(|(line, _)| line.starts_with(command)).unwrap();
    message(kind, 5, &[request[16..].to_vec(), attribute_of(mark)].concat())
}

fn get(mark: (u32, u32)) -> Vec<u8> {
    let mut body = [192, 0, 2, 2].to_vec();
    body.resize(16, 0);
    body.extend(0x1000_u32.to_be_bytes());
    body.extend([2, 0, 50, 0]);
    message(GET_SA, 5, &[body, attribute_of(mark)].concat())
}

fn errno(stage: &mut Stage, request: &[u8]) -> i32 {
    let answers = stage.ask(request);
    // GET answers with the state itself.
    answers.iter().find_map(Answer::verdict).map_or(0, |(errno, _)| errno)
}

/// The marks of all states, as a dump shows them.
fn shown(stage: &mut Stage) -> Vec<(u32, u32)> {
    let answers = stage.ask(&message(GET_SA, DUMP, &[0; 224]));
    let states = answers.iter().filter(|answer| answer.kind == NEW_SA);
    let mut marks: Vec<_> = states.map(|state| mark_in(&state.body)).collect();
    marks.sort_unstable();
    marks
}

fn mark_in(state: &[u8]) -> (u32, u32) {
    let mut attributes = uxfrm_netlink::RawAttributes::of(&state[224..]);
    attributes.find(|one| one.kind == 21).map_or((0, 0), |one| {
        let number = |at: usize| u32::from_ne_bytes(one.value[at..at + 4].try_into().unwrap());
        (number(0), number(4))
    })
}

#[test]
fn state_mark_is_masked_in_lookup_and_dump() {
    let mut stage = Stage::new();
    assert_eq!(errno(&mut stage, &tunnel(NEW_SA, WIDE)), 0);
    let told = stage.heard.iter().flat_map(|bytes| take_apart(bytes));
    assert_eq!(told.map(|answer| mark_in(&answer.body)).collect::<Vec<_>>(), [OWN]);
    assert_eq!(shown(&mut stage), [OWN]);
    for again in [WIDE, OWN] {
        assert_eq!(errno(&mut stage, &tunnel(NEW_SA, again)), EEXIST, "{again:?}");
        assert_eq!(errno(&mut stage, &get(again)), 0, "{again:?}");
        assert_eq!(errno(&mut stage, &tunnel(UPD_SA, again)), 0, "{again:?}");
    }
    assert_eq!(errno(&mut stage, &get((6, 0xff))), ESRCH);
    let snapshot = stage.database.snapshot();
    let found =
        |mark| snapshot.sad.inbound([192, 0, 2, 2].into(), Spi(0x1000), SaProtocol::Esp, mark);
    let mark = found(0xff05).map(|sa| sa.config().mark);
    assert_eq!(mark, Some(Mark { value: 5, mask: 0xff }));
    assert!(found(0x106).is_none());
}

#[test]
fn larval_state_keeps_unmasked_mark_and_is_not_found() {
    let mut stage = Stage::new();
    let reserve = |mark| {
        let mut body = tunnel(ALLOC_SPI, mark)[16..16 + 224].to_vec();
        body[72..76].fill(0);
        body.extend([0x1000_u32, 0x1001].iter().flat_map(|spi| spi.to_ne_bytes()));
        message(ALLOC_SPI, 5, &[body, attribute_of(mark)].concat())
    };
    // Each asks for one of its own, as nobody finds the one before.
    for _ in 0..2 {
        assert_eq!(mark_in(&stage.ask(&reserve(WIDE))[0].body), WIDE);
    }
    assert_eq!(shown(&mut stage), [WIDE, WIDE]);
    for mark in [WIDE, OWN] {
        assert_eq!(errno(&mut stage, &get(mark)), ESRCH, "{mark:?}");
        assert_eq!(errno(&mut stage, &tunnel(UPD_SA, mark)), ESRCH, "{mark:?}");
    }
    assert_eq!(errno(&mut stage, &tunnel(NEW_SA, WIDE)), 0);
    assert_eq!(shown(&mut stage), [OWN, WIDE, WIDE]);
}
