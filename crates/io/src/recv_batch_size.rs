//! Adaptive `recvmmsg` vector length.
//!
//! Each slot of the vector costs two buffers and headers, whether a message comes or not: on a
//! quiet link with cold caches several cache lines for each of 32 slots, for one packet. So a port
//! asks for few messages until more come.

/// Minimum: a few packets that belong together come in one call.
const MIN: usize = 4;

/// Growth factor after a call that filled the vector.
const GROWTH: usize = 4;

/// Vector length of the next call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvBatchSize(usize);

impl RecvBatchSize {
    pub(crate) const fn new() -> Self {
        Self(MIN)
    }

    /// The length, limited to `most`.
    pub(crate) fn of(self, most: usize) -> usize {
        self.0.min(most)
    }

    /// Records that `came` of `asked` messages came. The length grows at once, and at most halves
    /// with each call.
    pub(crate) fn note(&mut self, asked: usize, came: usize, most: usize) {
        let next = if came == asked { asked * GROWTH } else { (self.0 / 2).max(2 * came) };
        self.0 = next.max(MIN).min(most.max(MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of calls on a port with room for 32, with so many messages waiting at each.
    fn asked(waiting: &[usize]) -> Vec<usize> {
        let mut batch_size = RecvBatchSize::new();
        let call = |waiting: &usize| {
            let asked = batch_size.of(32);
            batch_size.note(asked, asked.min(*waiting), 32);
            asked
        };
        waiting.iter().map(call).collect()
    }

    #[test]
    fn recv_batch_size_grows_at_once_and_halves() {
        assert_eq!(asked(&[1, 2, 1, 0]), [4; 4], "a quiet port asks for few");
        assert_eq!(asked(&[100, 100, 100, 100]), [4, 16, 32, 32]);
        assert_eq!(asked(&[100, 100, 100, 1, 8, 8, 8]), [4, 16, 32, 32, 16, 16, 16]);
        assert_eq!(asked(&[100, 100, 0, 0, 0, 0, 0]), [4, 16, 32, 16, 8, 4, 4]);
        assert_eq!(asked(&[4, 4, 4]), [4, 16, 8], "whoever gets all may get more");
    }

    #[test]
    fn recv_batch_size_is_limited_by_room() {
        let mut batch_size = RecvBatchSize::new();
        assert_eq!(batch_size.of(2), 2);
        batch_size.note(2, 2, 32);
        assert_eq!(batch_size.of(32), 8);
        assert_eq!(batch_size.of(0), 0);
    }
}
