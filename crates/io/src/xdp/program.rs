//! Which frames the driver hands to the gateway's sockets, of those to the device's own Ethernet address.
//!
//! ```text
//!   Ethernet    to the device, untagged, IPv4 or IPv6, no longer than a   all else ─▶ the kernel, and by it the packet socket
//!               frame of the sockets' memory is; the tag of VLAN 0,
//!               which says a priority and no VLAN, is taken off
//!
//!   ESP         IPv4 without options and in one piece                      to no group, and over IPv6 to no link-local address
//!               next is ESP ─▶ socket    UDP ─▶ to one of the ports, its length within the packet, no marker of IKE ─▶ socket
//!
//!   own ESP     the same of ESP, to an address of the host ─▶ socket
//!
//!   passing     to no group and no address of the host; over IPv6 neither from nor to a link-local one ─▶ socket
//! ```
//!
//! *Sufficient* sentences: all of these are the gateway's by the rules that keep the host's stack out, and what of the gateway's they
//! do not know goes the longer way. So that of ESP needs no address of the host, and no word when one changes.

use uxfrm_packet::Protocol;
use uxfrm_packet::ethernet::{EtherType, MacAddr};

use super::code::{
    Code, END, FRAME, If, Instruction, LEFT, Label, QUEUE, R0, R1, R2, R3, RIGHT, START, Width,
    half,
};

/// Where in `struct xdp_md` the frame's ends and its queue are.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// `bpf_map_lookup_elem`, `bpf_xdp_adjust_head`, `bpf_redirect_map`, and `XDP_PASS`.
const LOOK_UP: i32 = 1;
const ADJUST_HEAD: i32 = 44;
const REDIRECT_MAP: i32 = 51;
const PASS: i32 = 2;

/// Bytes of Ethernet's header, of a VLAN tag, and up to the end of each IP header.
const ETHERNET: i16 = 14;
const TAG: i16 = 4;
const V4: i16 = ETHERNET + 20;
const V6: i16 = ETHERNET + 40;
/// UDP's header and a marker.
const MARKED: i16 = 8 + 4;

/// Bytes of an address in the map of the host's own: IPv4's are the last four behind zeros.
pub(super) const ADDRESS: usize = 16;

/// The program of a device with such frames, for ESP and for ESP in UDP at `ports`. `sockets` is a map by queue.
pub(super) fn esp(frames: Frames, ports: &[u16], sockets: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    begin(&mut code, frames);
    code.label(Label::V4);
    whole_v4(&mut code);
    to_no_group_v4(&mut code);
    code.field(Width::Byte, ETHERNET + 9);
    esp_or_udp(&mut code, V4, (2, -20), ports, Label::MarkerV4);
    code.label(Label::V6);
    code.reach(V6);
    to_no_group_v6(&mut code);
    code.field(Width::Byte, ETHERNET + 6);
    esp_or_udp(&mut code, V6, (4, 0), ports, Label::MarkerV6);
    end(&mut code, sockets);
    code.finish()
}

/// The program of a device with such frames, for ESP to the host itself. `own` is a map of the host's addresses, `sockets` one by queue.
pub(super) fn own_esp(frames: Frames, own: i32, sockets: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    begin(&mut code, frames);
    code.label(Label::V4);
    whole_v4(&mut code);
    code.field(Width::Byte, ETHERNET + 9);
    code.jump(If::NotEqual, Protocol::ESP.0.into(), Label::Pass);
    key_v4(&mut code);
    code.go(Label::Ask);
    code.label(Label::V6);
    code.reach(V6);
    code.field(Width::Byte, ETHERNET + 6);
    code.jump(If::NotEqual, Protocol::ESP.0.into(), Label::Pass);
    not_link_local(&mut code, ETHERNET + 24);
    key_v6(&mut code);
    code.label(Label::Ask);
    look_up(&mut code, own);
    code.jump_if_none(Label::Pass);
    code.go(Label::Take);
    end(&mut code, sockets);
    code.finish()
}

/// The program of a device with such frames, for what passes the host. `own` is a map of the host's addresses, `sockets` one by queue.
pub(super) fn passing(frames: Frames, own: i32, sockets: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    begin(&mut code, frames);
    code.label(Label::V4);
    to_no_group_v4(&mut code);
    key_v4(&mut code);
    code.go(Label::Ask);
    code.label(Label::V6);
    code.reach(V6);
    to_no_group_v6(&mut code);
    not_link_local(&mut code, ETHERNET + 8);
    key_v6(&mut code);
    code.label(Label::Ask);
    look_up(&mut code, own);
    code.jump_if_none(Label::Take);
    code.go(Label::Pass);
    end(&mut code, sockets);
    code.finish()
}

/// Which frames the sockets can have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    /// To this address.
    pub(super) mac: MacAddr,
    /// Of so many bytes at the most: a device's MTU may be raised after its sockets were made.
    pub(super) most: u32,
}

/// To the device, not too long, and of which version.
fn begin(code: &mut Code, Frames { mac, most }: Frames) {
    code.copy(FRAME, R1);
    code.load(Width::Word, QUEUE, FRAME, RX_QUEUE);
    find_frame(code);
    code.reach(V4);
    let [a, b, c, d, e, f] = mac.0;
    code.field(Width::Word, 0);
    code.jump_word(If::NotEqual, i32::from_ne_bytes([a, b, c, d]), Label::Pass);
    code.field(Width::Half, 4);
    code.jump(If::NotEqual, half([e, f]), Label::Pass);
    untag(code);
    code.label(Label::Untagged);
    code.within(i32::try_from(most).unwrap_or(i32::MAX));
    code.field(Width::Half, 12);
    code.jump(If::Equal, half(EtherType::IPV4.0.get().to_be_bytes()), Label::V4);
    code.jump(If::Equal, half(EtherType::IPV6.0.get().to_be_bytes()), Label::V6);
    code.go(Label::Pass);
}

fn find_frame(code: &mut Code) {
    code.load(Width::Word, START, FRAME, DATA);
    code.load(Width::Word, END, FRAME, DATA_END);
}

/// Takes the tag of VLAN 0 off, by moving the addresses over it; the kernel would do that too. Other tags are its own.
fn untag(code: &mut Code) {
    code.field(Width::Half, 12);
    code.jump(If::NotEqual, half(EtherType::VLAN.0.get().to_be_bytes()), Label::Untagged);
    code.reach(V4 + TAG);
    code.field(Width::Half, ETHERNET);
    code.and(half([0x0f, 0xff]));
    code.jump(If::NotEqual, 0, Label::Pass);
    let addresses = [(R0, 0), (R2, 4), (R3, 8)];
    addresses.into_iter().for_each(|(register, at)| code.load(Width::Word, register, START, at));
    addresses.into_iter().for_each(|(register, at)| code.write(register, at + TAG));
    code.copy(R1, FRAME);
    code.set(R2, TAG.into());
    // Does what it is told: there are as many bytes.
    code.call(ADJUST_HEAD);
    find_frame(code);
    code.reach(V4);
}

/// IPv4 without options and in one piece.
fn whole_v4(code: &mut Code) {
    code.field(Width::Byte, ETHERNET);
    code.jump(If::NotEqual, 0x45, Label::Pass);
    // More fragments, or one's place.
    code.field(Width::Half, ETHERNET + 6);
    code.and(half([0x3f, 0xff]));
    code.jump(If::NotEqual, 0, Label::Pass);
}

/// The destination on the stack, as a key of the map of the host's addresses.
fn key_v4(code: &mut Code) {
    code.set(RIGHT, 0);
    [16, 12, 8].into_iter().for_each(|before_end| code.store(RIGHT, before_end));
    code.load(Width::Word, RIGHT, START, ETHERNET + 16);
    code.store(RIGHT, 4);
}

/// As [`key_v4`].
fn key_v6(code: &mut Code) {
    for (at, before_end) in [(24, 16), (28, 12), (32, 8), (36, 4)] {
        code.load(Width::Word, RIGHT, START, ETHERNET + at);
        code.store(RIGHT, before_end);
    }
}

/// Asks a map for the key on the stack.
fn look_up(code: &mut Code, map: i32) {
    code.map(R1, map);
    code.point(R2, 16);
    code.call(LOOK_UP);
}

fn to_no_group_v4(code: &mut Code) {
    code.field(Width::Byte, ETHERNET + 16);
    code.jump(If::Above, 223, Label::Pass);
}

fn to_no_group_v6(code: &mut Code) {
    code.field(Width::Byte, ETHERNET + 24);
    code.jump(If::Equal, 0xff, Label::Pass);
    not_link_local(code, ETHERNET + 24);
}

/// An address of IPv6 that routers pass on.
fn not_link_local(code: &mut Code, at: i16) {
    code.field(Width::Half, at);
    code.and(half([0xff, 0xc0]));
    code.jump(If::Equal, half([0xfe, 0x80]), Label::Pass);
}

/// By the protocol that is looked at, behind an IP header up to `udp`, which says at a place of its own how many bytes there are, and how many more or
/// fewer follow it.
fn esp_or_udp(
    code: &mut Code,
    udp: i16,
    (length_at, more): (i16, i32),
    ports: &[u16],
    marker: Label,
) {
    code.jump(If::Equal, Protocol::ESP.0.into(), Label::Take);
    code.jump(If::NotEqual, Protocol::UDP.0.into(), Label::Pass);
    code.reach(udp + MARKED);
    code.load(Width::Half, RIGHT, START, ETHERNET + length_at);
    code.number(RIGHT);
    code.add(RIGHT, more);
    code.field(Width::Half, udp + 4);
    code.number(LEFT);
    code.jump_register(If::Above, Label::Pass);
    code.jump(If::Below, MARKED.into(), Label::Pass);
    code.field(Width::Half, udp + 2);
    for port in ports {
        code.jump(If::Equal, half(port.to_be_bytes()), marker);
    }
    code.go(Label::Pass);
    code.label(marker);
    code.field(Width::Word, udp + 8);
    code.jump_word(If::Equal, 0, Label::Pass);
    code.go(Label::Take);
}

/// To the socket of the frame's queue, to the kernel where it has none; or to the kernel.
fn end(code: &mut Code, sockets: i32) {
    code.label(Label::Take);
    code.map(R1, sockets);
    code.copy(R2, QUEUE);
    code.set(R3, PASS);
    code.call(REDIRECT_MAP);
    code.exit();
    code.label(Label::Pass);
    code.set(R0, PASS);
    code.exit();
}
