use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Drops, SharedCacheStats};

use super::*;
use crate::status::board::Board;

/// What a board has when this is posted.
fn posted(post: Post) -> Arc<Posted> {
    let board = Board::new(uxfrm_io::poll::Poller::new().unwrap().waker());
    board.post(|| post);
    board.posted()
}

#[test]
fn texts_of_counters_are_the_engines_byte_for_byte() {
    let (drops, mut others) = (Drops::default(), DropCounts::default());
    for (number, reason) in (1..).zip(DropReason::ALL) {
        drops.add(*reason, number);
        others.add(*reason, 1000);
    }
    let post = Post { drops: vec![Arc::new(drops)], others, ..Post::default() };
    let all = drop_counts(&post);
    let report = counters(&posted(post));
    assert_eq!(report.kernel_text(), all.xfrm_stat());
    assert_eq!(report.reasons_text(), all.reasons());
}

#[test]
fn caches_that_were_never_used_are_left_out() {
    let caches = vec![Arc::new(SharedCacheStats::default()), Arc::default()];
    let report = counters(&posted(Post { caches, ..Post::default() }));
    assert_eq!(report.caches, []);
    let used = CacheStats { hits: 3, entries: 1, ..CacheStats::default() };
    let told = cache(1, ("out", "ipv6"), &used);
    assert_eq!((told.worker, told.hits, told.entries), (1, 3, 1));
}

#[test]
fn wrong_cursor_is_refused() {
    let database = Database::new(Backend::Portable, 1);
    let identity = crate::status::identity(
        std::path::Path::new("x"),
        &crate::config::Config::parse("test", "").unwrap(),
    );
    let mut sources =
        Sources::new(database.published(), identity, Settings::default(), now(), (&[], &[]));
    let mut ask = |after: &str| {
        let query = StatusQuery { after: Some(after.to_owned()), ..StatusQuery::default() };
        sources.answer(&StatusRequest::Status(query), &posted(Post::default()), Access::Full)
    };
    assert!(matches!(ask(""), StatusAnswer::Status(_)));
    let StatusAnswer::Refusal(refusal) = ask("1.2.3.4") else { panic!("a cursor") };
    assert!(refusal.message.contains("`next`"), "{refusal:?}");
}
