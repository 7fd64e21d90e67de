//! The body of the fuzz target `client`: what comes by the control socket and is no `NETLINK_XFRM`,
//! and what its clients are answered.

mod devices;
mod page;
#[cfg(not(fuzzing))]
mod seeds;
mod tunnels;

#[cfg(not(fuzzing))]
pub(crate) use seeds::seeds;
use uxfrm_control::greeting::{Dialect, Greeting};
use uxfrm_control_client::reload;

/// The first byte tells what the others are: a greeting, what happens on a shared page, datagrams
/// for the family `fou`, a request about a link, commands and answers of `uxfrm dev`, a device's
/// profile, or what `uxfrm reload` says and hears.
///
/// # Panics
/// When a decoder does, believes what cannot be, or what it read is not the same once written and
/// read again.
pub(crate) fn client(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 8 {
        0 => greeting(bytes),
        1 => page::page(bytes),
        2 => tunnels::ports(bytes),
        3 => tunnels::link(bytes),
        4 => devices::commands(bytes),
        5 => devices::answers(bytes),
        6 => devices::profile(bytes),
        _ => reloading(bytes),
    }
}

fn greeting(bytes: &[u8]) {
    if let Some(greeting) = Greeting::parse(bytes) {
        assert_eq!(greeting.to_bytes(), bytes);
        let dialect = Dialect::of(greeting.value);
        assert!(dialect.is_none_or(|dialect| dialect as u32 == greeting.value));
    }
}

fn reloading(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<reload::ReloadRequest>(bytes) {
        let written = serde_json::to_vec(&request).expect("it was read");
        assert_eq!(serde_json::from_slice::<reload::ReloadRequest>(&written).ok(), Some(request));
    }
    if let Ok(answer) = serde_json::from_slice::<reload::ReloadAnswer>(bytes) {
        let written = serde_json::to_vec(&answer).expect("it was read");
        assert_eq!(serde_json::from_slice::<reload::ReloadAnswer>(&written).ok(), Some(answer));
    }
}
