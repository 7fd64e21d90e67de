//! What a session believes, without an etcd; what needs one is in `tests/interop`.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uxfrm_fleet::{
    keyspace::Keyspace,
    seal::{FleetKey, SealNonce, Serial},
    store::Stay,
};
use zeroize::Zeroizing;

use super::{
    super::messages::{Event, KeyValue, ResponseHeader},
    *,
};

fn keys() -> PoolKeyspace {
    Keyspace::of(&"f".parse().unwrap()).pool(&"default".parse().unwrap())
}

fn session() -> (EtcdSession, UnboundedReceiver<StoreEvent>) {
    let config = SessionConfig {
        etcd: EtcdConfig::default(),
        keys: keys(),
        gateway: "gw-1".parse().unwrap(),
        lease: 3_000,
    };
    let (sender, receiver) = unbounded_channel();
    (EtcdSession::new(config, StoreHistory::in_memory(), keyring(), sender), receiver)
}

fn keyring() -> Keyring {
    Keyring::new(FleetKey::new(Zeroizing::new([7; 32])), [])
}

fn sealed(key: &str, serial: u64) -> Vec<u8> {
    keyring().seal(key, Serial(serial), b"{}", SealNonce([serial.to_le_bytes()[0]; 24]))
}

fn record(key: &str, serial: u64) -> Stored {
    Stored { value: sealed(key, serial), revision: StoreRevision(serial) }
}

fn put(key: &str, serial: u64) -> StoreOperation {
    StoreOperation::Put { key: key.to_owned(), value: sealed(key, serial), stay: Stay::Forever }
}

#[test]
fn members_do_not_go_back() {
    let (session, _events) = session();
    let key = keys().members();
    assert_eq!(session.shared.believe(&key, &record(&key, 5)), Ok(()));
    assert_eq!(session.shared.believe(&key, &record(&key, 5)), Ok(()));
    let why = session.shared.believe(&key, &record(&key, 4)).unwrap_err();
    assert!(why.contains("members: it went back from 5 to 4"), "{why}");
}

#[test]
fn own_numbers_and_edges_are_noted_and_those_of_others_are_not() {
    let (session, _events) = session();
    let numbers = keys().all_numbers() + "0a";
    let own = keys().edges(&"gw-1".parse().unwrap());
    let other = keys().edges(&"gw-2".parse().unwrap());
    let transaction = |operations| StoreTransaction { conditions: Vec::new(), operations };
    assert!(!session.shared.note_own(&transaction(vec![put(&own, 3), put(&other, 3)])));
    assert!(session.shared.note_own(&transaction(vec![put(&numbers, 65_537)])));
    for (key, is_noted) in [(&own, true), (&other, false), (&numbers, true)] {
        assert_eq!(session.shared.believe(key, &record(key, 2)).is_err(), is_noted, "{key}");
    }
}

#[test]
fn edges_with_one_that_went_back_are_no_answer() {
    let (session, mut events) = session();
    let own = keys().edges(&"gw-1".parse().unwrap());
    session.shared.history.note(&own, Serial(9));
    let old = vec![(own.clone(), record(&own, 8))];
    assert_eq!(session.shared.records(StoreRevision(1), old), StoreAnswer::Unknown);
    assert!(matches!(events.try_recv(), Ok(StoreEvent::Refused(_))));
    let new = vec![(own.clone(), record(&own, 9))];
    let answer = StoreAnswer::Records(StoreRevision(1), new.clone());
    assert_eq!(session.shared.records(StoreRevision(1), new), answer);
}

#[test]
fn a_watch_counts_as_told_once_all_parts_came() {
    let (session, mut events) = session();
    let key = keys().prefix().to_owned() + "x";
    let kv = KeyValue { key: key.into_bytes(), mod_revision: 41, value: vec![1] };
    let part = |fragment, created| WatchResponse {
        header: Some(ResponseHeader { revision: 42, ..ResponseHeader::default() }),
        events: vec![Event { kind: 0, kv: Some(kv.clone()) }],
        fragment,
        created,
        ..WatchResponse::default()
    };
    let mut watched = Some(StoreRevision(40));
    session.shared.pass_on(part(true, false), &mut watched);
    assert_eq!(watched, Some(StoreRevision(40)));
    session.shared.pass_on(part(false, true), &mut watched);
    assert_eq!(watched, Some(StoreRevision(40)), "its header is newer than its events");
    session.shared.pass_on(part(false, false), &mut watched);
    assert_eq!(watched, Some(StoreRevision(42)));
    for _ in 0..3 {
        let event = events.try_recv();
        assert!(matches!(event, Ok(StoreEvent::Input(AgentInput::Changed(_)))), "{event:?}");
    }
}

#[tokio::test]
async fn without_etcd_nobody_knows() {
    let (session, mut events) = session();
    let asked_at = Instant::now();
    session.ask(RequestId(3), StoreRequest::Read(keys().members()));
    let event = events.recv().await;
    let is_unknown = matches!(
        event,
        Some(StoreEvent::Input(AgentInput::Answered(RequestId(3), StoreAnswer::Unknown)))
    );
    assert!(is_unknown, "{event:?}");
    assert!(asked_at.elapsed() >= UNKNOWN_AFTER, "or the agent would ask in a loop");
}

#[test]
fn pauses_differ_and_have_bounds() {
    let pauses: Vec<_> = (0..100).map(|_| jittered(Duration::from_secs(2))).collect();
    assert!(pauses.iter().all(|pause| (1..=2).contains(&pause.as_secs())), "{pauses:?}");
    assert!(pauses.iter().any(|pause| *pause != pauses[0]));
}
