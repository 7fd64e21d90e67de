//! Whatever bytes come, the server answers and goes on: no panic, answers that are whole messages.

use crate::stage::{Stage, golden, message, take_apart};
use proptest::{collection::vec, prelude::*};

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..600)) {
        Stage::new().ask(&bytes);
    }

    #[test]
    fn any_body_of_any_type_is_answered(kind in 0x0f_u16..0x2c, flags in any::<u16>(), body in vec(any::<u8>(), 0..700)) {
        let request = message(kind, flags | 1, &body);
        let mut stage = Stage::new();
        let answers = stage.ask(&request);
        prop_assert!(answers.iter().all(|answer| answer.seq == 7));
        for bytes in &stage.heard {
            prop_assert_eq!(take_apart(bytes).len(), 1);
        }
    }

    /// Requests of iproute2 with a few bytes changed or cut off, one after the other on one server.
    #[test]
    fn broken_requests_are_answered(
        edits in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0..4_usize), 1..40),
    ) {
        let golden = golden();
        let mut stage = Stage::new();
        for (which, place, value, cut) in edits {
            let mut request = which.get(&golden).1.clone();
            let place = place.index(request.len());
            request[place] = value;
            if cut == 0 {
                request.truncate(place);
                if let Some(len) = request.get_mut(..4) {
                    len.copy_from_slice(&u32::try_from(place).unwrap().to_ne_bytes());
                }
            }
            stage.ask(&request);
        }
    }
}

/// Every length of every request, for its own type.
#[test]
fn request_prefix_of_any_length_is_answered() {
    let mut stage = Stage::new();
    for (command, request) in golden() {
        for len in 0..request.len() {
            let cut = &request[..len];
            assert!(stage.ask(cut).is_empty(), "{command}: {len} bytes are no whole message");
            let Some(body) = cut.get(16..) else { continue };
            let kind = u16::from_ne_bytes([request[4], request[5]]);
            assert!(!stage.ask(&message(kind, 5, body)).is_empty(), "{command}: {len} bytes");
        }
    }
}
