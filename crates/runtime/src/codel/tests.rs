//! CoDel with sojourn times that the test chooses.

use std::ops::Range;

use uxfrm_packet::PacketBuf;

use super::*;

const TARGET: Duration = Duration::from_micros(300);
const LONG: Duration = Duration::from_micros(300);
const SHORT: Duration = Duration::from_micros(299);

fn microseconds(count: u64) -> Moment {
    Moment(count * 1000)
}

/// Times of signals, in µs, while every 100 µs a packet leaves that waited as `waited` says.
fn signs(queue: &mut Codel, times: Range<u64>, waited: impl Fn(u64) -> Duration) -> Vec<u64> {
    let mut given = Vec::new();
    for time in times.step_by(100) {
        let now = microseconds(time);
        if queue.is_due(waited(time), now) {
            queue.signalled(now);
            given.push(time);
        }
    }
    given
}

#[test]
fn codel_short_burst_sends_no_signal() {
    let mut queue = Codel::new(TARGET);
    // Every 1.9 ms one packet waited no longer than the target.
    let waited = |time| if time % 1900 == 0 { SHORT } else { Duration::from_millis(50) };
    assert_eq!(signs(&mut queue, 0..1_000_000, waited), []);
}

#[test]
fn codel_standing_queue_signals_at_inverse_sqrt_intervals() {
    let mut queue = Codel::new(TARGET);
    let given = signs(&mut queue, 0..12_000, |_| LONG);
    // 2 ms after packets stood, then after 2 / √1, 2 / √2, 2 / √3 … more, at the next hundred.
    assert_eq!(given, [2000, 4000, 5500, 6600, 7600, 8500, 9300, 10_100, 10_800, 11_500]);
}

#[test]
fn codel_queue_standing_again_soon_keeps_signal_rate() {
    let mut queue = Codel::new(TARGET);
    assert!(signs(&mut queue, 0..30_000, |_| LONG).len() > 30);
    assert_eq!(signs(&mut queue, 30_000..31_000, |_| SHORT), []);
    let again = signs(&mut queue, 31_000..41_000, |_| LONG).len();
    let fresh = signs(&mut Codel::new(TARGET), 31_000..41_000, |_| LONG).len();
    assert!(again > 2 * fresh, "{again} {fresh}");
    // Much later it is another episode.
    assert_eq!(signs(&mut queue, 41_000..90_000, |_| SHORT), []);
    assert_eq!(signs(&mut queue, 90_000..100_000, |_| LONG).len(), fresh);
}

#[test]
fn codel_signal_stays_due_until_sent() {
    let mut queue = Codel::new(TARGET);
    assert!(!queue.is_due(LONG, microseconds(0)));
    assert!(queue.is_due(LONG, microseconds(2000)) && queue.is_due(LONG, microseconds(2001)));
    queue.signalled(microseconds(2002));
    assert!(!queue.is_due(LONG, microseconds(2003)));
}

/// An IPv4 packet of this protocol with `payload` bytes behind 20 bytes of upper header.
fn packet(protocol: u8, tos: u8, payload: u16) -> PacketBuf {
    let mut bytes = vec![0x45, tos];
    bytes.extend((40 + payload).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend([0; 12]);
    bytes.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.resize(40 + usize::from(payload), 7);
    PacketBuf::from_slice(&bytes)
}

#[test]
fn congestion_signal_goes_to_largest_tcp_packet() {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let mut pool = Pool::new();
    let packets = [packet(TCP, 0, 10), packet(TCP, 0, 30), packet(UDP, 0, 90), packet(TCP, 0, 20)];
    let mut batch: Batch = packets.into_iter().collect();
    assert_eq!(signal_one_sender(&mut batch, &mut pool), Some(CongestionSignal::ByLoss));
    let left: Vec<_> = batch.as_slice().iter().map(|packet| packet.len()).collect();
    assert_eq!(left, [50, 130, 60]);
    let mut marked: Batch = [packet(TCP, 2, 10), packet(TCP, 0, 9)].into_iter().collect();
    assert_eq!(signal_one_sender(&mut marked, &mut pool), Some(CongestionSignal::ByMark));
    assert_eq!(marked.as_slice()[0].bytes()[1], 3);
    let mut others: Batch = [packet(UDP, 0, 10), packet(TCP, 0, 0)].into_iter().collect();
    assert_eq!(signal_one_sender(&mut others, &mut pool), None);
    assert_eq!(others.len(), 2);
}
