//! What a server has passes to another in messages, and is the same there (`uxfrm upgrade`).

use uxfrm_engine::Family;
use uxfrm_netlink::RestoredItem;

use crate::dice::{Candidate, Dice};
use crate::stage::{Answer, Stage, golden, message};

const GET_SA: u16 = 0x12;
const GET_POLICY: u16 = 0x15;
const GET_DEFAULT: u16 = 0x28;
const SET_DEFAULT: u16 = 0x27;
/// `NLM_F_REQUEST`, and with `NLM_F_DUMP`.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x301;

/// All that clients can see of it.
fn shown(stage: &mut Stage) -> [Vec<Answer>; 3] {
    [
        stage.ask(&message(GET_SA, DUMP, &[])),
        stage.ask(&message(GET_POLICY, DUMP, &[])),
        stage.ask(&message(GET_DEFAULT, REQUEST, &[0; 3])),
    ]
}

/// Another process, which is given an export.
fn passed_on(stage: &Stage) -> Stage {
    let mut other = Stage::new();
    other.now = stage.now;
    let states = stage.server.export_states(&stage.database);
    for (sa, export) in &states {
        let restored = other.server.restore(export.bytes(), &mut other.database, sa.added());
        let Ok(RestoredItem::State(there)) = restored else { panic!("{restored:?}") };
        assert_eq!(there.id(), sa.id());
    }
    for export in stage.server.export_others(&stage.database) {
        let restored = other.server.restore(export.bytes(), &mut other.database, stage.now);
        assert!(matches!(restored, Ok(RestoredItem::Other)), "{restored:?}");
    }
    other
}

#[test]
fn restored_database_equals_the_exported_one() {
    let mut stage = Stage::new();
    let mut kinds = [0, 0];
    // Those that put something in, each seen by itself and together with all before it.
    for (command, request) in golden() {
        if ["flush", "delete", "list", "get"].iter().any(|word| command.contains(word)) {
            continue;
        }
        stage.ask(&request);
        let mut other = passed_on(&stage);
        let [before, after] = [&mut stage, &mut other].map(shown);
        assert_eq!(after, before, "{command}");
        kinds = [0, 1].map(|kind| kinds[kind].max(before[kind].len()));
    }
    assert!(kinds.iter().all(|count| *count > 2), "{kinds:?}: states and policies were there");
}

#[test]
fn restored_policies_keep_their_order() {
    for seed in 0..20 {
        let (mut stage, mut dice) = (Stage::new(), Dice::new(Family::V4, seed));
        let mut all: Vec<Candidate> = Vec::new();
        for _ in 0..60 {
            let mut candidate = dice.candidate();
            stage.ask(&candidate.add());
            if dice.below(3) == 0 {
                stage.ask(&candidate.update(&mut dice));
            }
            all.push(candidate);
        }
        stage.ask(&message(SET_DEFAULT, REQUEST, &[1, 2, 1]));
        let mut other = passed_on(&stage);
        let mut ends = [stage.database.snapshot(), other.database.snapshot()].map(|snapshot| {
            let mut entries: Vec<_> = snapshot.spd.iter().cloned().collect();
            entries.sort_by_key(|entry| (entry.direction() as usize, entry.precedence()));
            entries.into_iter().map(|entry| (entry.index(), entry.policy())).collect::<Vec<_>>()
        });
        let there = std::mem::take(&mut ends[1]);
        assert_eq!(there, ends[0], "seed {seed}");
        let [before, after] = [&mut stage, &mut other].map(|stage| shown(stage)[2].clone());
        assert_eq!(after, before);
    }
}
