//! Decodes arbitrary bytes as answers of `nf_tables`, for fuzzers and tests.

use super::message::{Batch, Kind};
use super::model::MessageSubject;
use super::{count, handle, read_results, text, told};
use crate::message::{Payload, answers};
use uxfrm_netlink_wire::{NetlinkFlags, RawAttributes};

/// First sequence number of the transaction, which has three messages.
const BEGIN: u32 = 7;
const TABLE: &str = "uxfrm-uxfrm0";

/// Decodes bytes as a datagram of answers to a request, and to a transaction.
///
/// # Panics
/// When reading does, or an error concerns something that was not requested.
pub(crate) fn decode(bytes: &[u8]) {
    for answer in answers(bytes) {
        if let Payload::Attributes(found) = answer.payload {
            RawAttributes::of(found).for_each(|attribute| {
                let _ = text(found, attribute.kind);
                RawAttributes::of(attribute.value).for_each(drop);
            });
            let _ = (handle(found), count(TABLE, found));
        }
    }
    let mut batch = Batch::new(BEGIN);
    (0..3).for_each(|_| {
        batch.push(MessageSubject::Table, Kind::NewTable, NetlinkFlags::empty(), |table| {
            table.text(1, TABLE)
        })
    });
    batch.finish();
    let mut first = None;
    let is_over = read_results(bytes, &batch, &mut first);
    if let Some((part, errno)) = first {
        assert_ne!(errno, 0);
        assert!(is_over || part.is_some());
    }
    let _ = told(bytes, &batch);
}

/// Seeds of the corpus: a table, a rule, a set, a counter, the results of a transaction.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use super::message::question;
    let object = question(Kind::NewObject, NetlinkFlags::empty(), BEGIN, |object| {
        object.text(1, TABLE);
        object.text(2, "in_plain");
        object.nest(4, |counter| counter.be64(2, 7));
    });
    let rule = question(Kind::NewRule, NetlinkFlags::empty(), BEGIN + 1, |rule| {
        rule.text(1, TABLE);
        rule.text(2, "in");
        rule.be64(3, 9);
    });
    let result = |sequence: u32, errno: i32| {
        let words = [36, 2, sequence, 0, errno.cast_unsigned(), 20, 0, sequence, 0];
        words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>()
    };
    let results = [result(BEGIN + 2, -17), result(BEGIN + 3, 0)].concat();
    let all = [&object[..], &rule, &results].concat();
    vec![object, rule, results, result(BEGIN, -1), all]
}
