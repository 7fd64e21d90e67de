//! The store's requests as etcd's, and its answers back.

use uxfrm_fleet::store::{
    KeyChange, Stay, StoreCondition, StoreOperation, StoreRevision, StoreTransaction, Stored,
};

use super::messages::{
    COMPARE_REVISION, ComparedValue, Comparison, DeleteRangeRequest, EVENT_DELETE, Event, KeyValue,
    OperationKind, PutRequest, RangeRequest, RequestOperation, TransactionRequest,
    WatchCreateRequest, WatchRequest,
};

/// Names a lease of etcd; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EtcdLease(pub(crate) i64);

/// The transaction in etcd's words; none where it has leased keys and there is no lease.
pub(crate) fn transaction(
    transaction: &StoreTransaction,
    lease: Option<EtcdLease>,
) -> Option<TransactionRequest> {
    let operations = transaction.operations.iter();
    let success = operations.map(|operation| operation_of(operation, lease)).collect::<Option<_>>();
    let compare = transaction.conditions.iter().map(comparison).collect();
    Some(TransactionRequest { compare, success: success? })
}

fn comparison(condition: &StoreCondition) -> Comparison {
    // A key that is not there has the revision 0.
    let revision = condition.written.map_or(0, |written| signed(written.0));
    Comparison {
        result: 0,
        target: COMPARE_REVISION,
        key: condition.key.clone().into_bytes(),
        value: Some(ComparedValue::Revision(revision)),
    }
}

fn operation_of(operation: &StoreOperation, lease: Option<EtcdLease>) -> Option<RequestOperation> {
    let kind = match operation {
        StoreOperation::Put { key, value, stay } => {
            let lease = match stay {
                Stay::Forever => 0,
                Stay::Leased => lease?.0,
            };
            let (key, value) = (key.clone().into_bytes(), value.clone());
            OperationKind::Put(PutRequest { key, value, lease })
        }
        StoreOperation::Delete { key } => {
            OperationKind::Delete(DeleteRangeRequest { key: key.clone().into_bytes() })
        }
    };
    Some(RequestOperation { kind: Some(kind) })
}

/// What reads one key.
pub(crate) fn read(key: &str) -> RangeRequest {
    RangeRequest { key: key.as_bytes().to_vec(), ..RangeRequest::default() }
}

/// What reads the keys that begin so, from one of them on.
pub(crate) fn read_page(
    prefix: &str,
    from: Vec<u8>,
    limit: i64,
    revision: StoreRevision,
) -> RangeRequest {
    let revision = signed(revision.0);
    RangeRequest { key: from, range_end: end_of(prefix), limit, revision, keys_only: false }
}

/// What watches the keys that begin so, after a revision.
pub(crate) fn watch(prefix: &str, after: StoreRevision) -> WatchRequest {
    let create = WatchCreateRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: end_of(prefix),
        start_revision: signed(after.0.saturating_add(1)),
        progress_notify: true,
        fragment: true,
    };
    WatchRequest { create: Some(create) }
}

/// The first key behind all that begin so. Prefixes are ASCII and end with a slash.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A key and what it holds. A key that is no UTF-8 is none of the fleet's.
pub(crate) fn stored(kv: KeyValue) -> Option<(String, Stored)> {
    let key = String::from_utf8(kv.key).ok()?;
    Some((key, Stored { value: kv.value, revision: revision(kv.mod_revision) }))
}

/// A watch's event, and when it was.
pub(crate) fn change(event: Event) -> Option<(StoreRevision, KeyChange)> {
    let is_gone = event.kind == EVENT_DELETE;
    let (key, stored) = stored(event.kv?)?;
    let at = stored.revision;
    Some((at, KeyChange { key, stored: (!is_gone).then_some(stored) }))
}

/// etcd's revisions are positive.
pub(crate) fn revision(number: i64) -> StoreRevision {
    StoreRevision(u64::try_from(number).unwrap_or_default())
}

/// No store lives for 2^63 changes.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn put(stay: Stay) -> StoreTransaction {
        let put = StoreOperation::Put { key: "/a".to_owned(), value: vec![7], stay };
        let delete = StoreOperation::Delete { key: "/b".to_owned() };
        let written = Some(StoreRevision(300));
        let conditions = vec![
            StoreCondition { key: "/a".to_owned(), written },
            StoreCondition { key: "/c".to_owned(), written: None },
        ];
        StoreTransaction { conditions, operations: vec![put, delete] }
    }

    #[test]
    fn a_transaction_byte_for_byte() {
        let bytes = transaction(&put(Stay::Leased), Some(EtcdLease(5))).unwrap().encode_to_vec();
        let compare_a = [&[0x0a, 9, 0x10, 2, 0x1a, 2][..], b"/a", &[0x30, 0xac, 0x02]].concat();
        // A revision of 0 is written: it is a choice of a `oneof`.
        let compare_c = [&[0x0a, 8, 0x10, 2, 0x1a, 2][..], b"/c", &[0x30, 0]].concat();
        let put = [&[0x12, 11, 0x12, 9, 0x0a, 2][..], b"/a", &[0x12, 1, 7, 0x18, 5]].concat();
        let delete = [&[0x12, 6, 0x1a, 4, 0x0a, 2][..], b"/b"].concat();
        assert_eq!(bytes, [compare_a, compare_c, put, delete].concat());
    }

    #[test]
    fn what_is_leased_needs_a_lease() {
        assert_eq!(transaction(&put(Stay::Leased), None), None);
        let kept = transaction(&put(Stay::Forever), Some(EtcdLease(5))).unwrap();
        let Some(OperationKind::Put(put)) = &kept.success[0].kind else { panic!("a put") };
        assert_eq!(put.lease, 0);
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        let request = read_page("/uxfrm/1/a/", b"/uxfrm/1/a/x".to_vec(), 9, StoreRevision(3));
        assert_eq!((request.range_end, request.revision), (b"/uxfrm/1/a0".to_vec(), 3));
        let create = watch("/p/", StoreRevision(41)).create.unwrap();
        assert_eq!((create.start_revision, create.range_end), (42, b"/p0".to_vec()));
    }

    #[test]
    fn events_by_kind() {
        let kv = KeyValue { key: b"/a".to_vec(), mod_revision: 9, value: vec![1] };
        let at = |kind| change(Event { kind, kv: Some(kv.clone()) }).unwrap();
        let stored = Stored { value: vec![1], revision: StoreRevision(9) };
        let key = "/a".to_owned();
        assert_eq!(at(0), (StoreRevision(9), KeyChange { key: key.clone(), stored: Some(stored) }));
        assert_eq!(at(EVENT_DELETE), (StoreRevision(9), KeyChange { key, stored: None }));
        let odd = KeyValue { key: vec![0xff], ..kv };
        assert_eq!(change(Event { kind: 0, kv: Some(odd) }), None);
        assert_eq!(change(Event::default()), None);
    }
}
