//! When a worker requests neighbours. The test is the clock and the resolver.

use std::sync::mpsc::{self, Sender};

use uxfrm_io::poll::Poller;

use super::*;

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = SECOND / 1000;
const MAC: MacAddr = MacAddr([4; 6]);

fn hop() -> NextHop {
    NextHop { side: PortSide::Wire, address: IpAddr::from([192, 0, 2, 2]) }
}

/// A worker's table with one destination, which is its own next hop.
struct Bench {
    next_hops: NextHops,
    asked: Receiver<NextHopRequest>,
    told: Sender<NextHopUpdate>,
    now: Moment,
}

impl Bench {
    /// The route is known, the neighbour is not: it was requested together with the route.
    fn new() -> Self {
        let (questions, asked) = mpsc::sync_channel(64);
        let (told, news) = mpsc::channel();
        let guide = ResolverEnds {
            requests: questions,
            waker: Poller::new().unwrap().waker(),
            updates: news,
        };
        let next_hops = NextHops::new(guide, [MacAddr([2; 6]); 2]);
        let mut bench = Self { next_hops, asked, told, now: Moment::from_secs(100) };
        assert_eq!(bench.send(), HopLookup::Pending);
        assert_eq!(bench.questions(), [NextHopRequest::Route(hop().address)]);
        bench.apply_updates(NextHopUpdate::Route(
            hop().address,
            ResolvedRoute::Via { hop: hop(), mtu: 1500, source: None },
        ));
        bench.hear_of(NeighbourState::Resolving);
        bench
    }

    fn apply_updates(&mut self, news: NextHopUpdate) {
        self.told.send(news).unwrap();
        assert!(self.next_hops.apply_updates(self.now));
    }

    fn hear_of(&mut self, standing: NeighbourState) {
        self.apply_updates(NextHopUpdate::Neighbour(hop(), standing));
    }

    fn send(&mut self) -> HopLookup {
        self.next_hops.lookup(hop().address, self.now)
    }

    fn pass(&mut self, nanoseconds: u64) {
        self.now.0 += nanoseconds;
    }

    fn questions(&self) -> Vec<NextHopRequest> {
        self.asked.try_iter().collect()
    }

    fn is_sent_to_neighbour(&mut self) -> bool {
        matches!(self.send(), HopLookup::Send { header, .. } if header.destination == MAC)
    }
}

/// The kernel reports a flushed neighbour as failed and then as deleted; the worker may send in
/// between.
#[test]
fn answered_neighbour_is_requested_without_delay() {
    use NeighbourState::{Failed, Removed};
    for told in [&[Failed][..], &[Removed], &[Failed, Removed]] {
        let mut bench = Bench::new();
        for _ in 0..100 {
            bench.hear_of(NeighbourState::Known(MAC));
            assert!(bench.is_sent_to_neighbour());
            told.iter().for_each(|standing| bench.hear_of(*standing));
            assert_eq!(bench.send(), HopLookup::Pending, "{told:?}");
            assert_eq!(bench.send(), HopLookup::Pending, "{told:?}");
            assert_eq!(
                bench.questions(),
                [NextHopRequest::Neighbour(hop())],
                "{told:?}: once is enough"
            );
            bench.hear_of(NeighbourState::Resolving);
            bench.pass(MILLISECOND);
        }
    }
}

#[test]
fn silent_neighbour_is_unreachable_for_a_second() {
    let mut bench = Bench::new();
    bench.pass(3 * SECOND);
    bench.hear_of(NeighbourState::Failed);
    assert_eq!(bench.send(), HopLookup::Unreachable);
    bench.pass(SECOND);
    assert_eq!(bench.send(), HopLookup::Unreachable);
    assert_eq!(bench.questions(), []);
    bench.pass(1);
    assert_eq!(bench.send(), HopLookup::Pending);
    assert_eq!(bench.questions(), [NextHopRequest::Neighbour(hop())]);
}

/// As while a link flaps, or where a full table makes the kernel forget each request at once.
#[test]
fn forgotten_neighbour_is_requested_with_backoff() {
    let mut bench = Bench::new();
    let mut asked = Vec::new();
    let start = bench.now;
    while bench.now.since(start).as_secs() < 5 {
        bench.hear_of(NeighbourState::Removed);
        assert_eq!(bench.send(), HopLookup::Pending);
        for _question in bench.questions() {
            asked.push(u64::try_from(bench.now.since(start).as_millis()).unwrap());
            bench.hear_of(NeighbourState::Resolving);
        }
        bench.pass(MILLISECOND);
    }
    assert_eq!(asked, [10, 30, 70, 150, 310, 630, 1270, 2270, 3270, 4270]);
    bench.hear_of(NeighbourState::Known(MAC));
    bench.hear_of(NeighbourState::Removed);
    assert_eq!(bench.send(), HopLookup::Pending);
    assert_eq!(bench.questions(), [NextHopRequest::Neighbour(hop())], "it has answered meanwhile");
}

/// It may have been requested while a link was down: the kernel then gives up at any time, before
/// or after the link comes up.
#[test]
fn silent_neighbour_is_requested_after_links_change() {
    for told in [[NextHopUpdate::LinksChanged, gone()], [gone(), NextHopUpdate::LinksChanged]] {
        let mut bench = Bench::new();
        bench.pass(3 * SECOND);
        for news in told {
            bench.apply_updates(news);
        }
        assert_eq!(bench.send(), HopLookup::Pending);
        assert_eq!(
            bench.questions(),
            [NextHopRequest::Route(hop().address), NextHopRequest::Neighbour(hop())]
        );
        bench.pass(3 * SECOND);
        bench.hear_of(NeighbourState::Failed);
        assert_eq!(bench.send(), HopLookup::Unreachable, "{told:?}: it has had its chance");
        assert_eq!(bench.questions(), []);
    }
}

/// The kernel ignores repeated requests: it gives up on what it began while the link was down.
#[test]
fn neighbour_resolved_over_old_links_is_requested_again() {
    let mut bench = Bench::new();
    bench.apply_updates(NextHopUpdate::LinksChanged);
    bench.pass(2 * SECOND);
    assert_eq!(bench.send(), HopLookup::Pending);
    let asked = bench.questions();
    assert!(
        asked.contains(&NextHopRequest::Neighbour(hop())),
        "{asked:?}: two seconds without an answer"
    );
    bench.pass(SECOND);
    bench.hear_of(NeighbourState::Failed);
    assert_eq!(bench.send(), HopLookup::Pending);
    assert_eq!(bench.questions(), [NextHopRequest::Neighbour(hop())]);
    bench.pass(3 * SECOND);
    bench.hear_of(NeighbourState::Failed);
    assert_eq!(bench.send(), HopLookup::Unreachable, "it has had its chance");
}

fn gone() -> NextHopUpdate {
    NextHopUpdate::Neighbour(hop(), NeighbourState::Failed)
}

/// With a flapping link the kernel gives up as often.
#[test]
fn silent_neighbour_with_flapping_link_causes_no_request_flood() {
    let mut bench = Bench::new();
    let mut uses = 0;
    for _ in 0..10_000 {
        bench.hear_of(NeighbourState::Failed);
        bench.apply_updates(NextHopUpdate::LinksChanged);
        let _way = bench.send();
        uses += bench
            .questions()
            .iter()
            .filter(|asked| **asked == NextHopRequest::Neighbour(hop()))
            .count();
        bench.pass(MILLISECOND);
    }
    assert_eq!(uses, 15, "seven until there is a second between two, then one a second");
}

/// The kernel solicits at once when it is told of a use, if it has given up meanwhile.
#[test]
fn resolving_neighbour_is_requested_again_with_its_route() {
    for news in [NextHopUpdate::RoutesChanged, NextHopUpdate::LinksChanged] {
        let mut bench = Bench::new();
        assert_eq!(bench.send(), HopLookup::Pending);
        assert_eq!(bench.questions(), []);
        bench.apply_updates(news);
        assert_eq!(bench.send(), HopLookup::Pending);
        assert_eq!(bench.send(), HopLookup::Pending);
        assert_eq!(bench.questions(), [NextHopRequest::Route(hop().address)]);
    }
}
