//! The XDP program: which frames to the device's own Ethernet address go to the gateway's sockets.
//!
//! ```text
//!   Ethernet    to the device, untagged, IPv4 or IPv6, no longer than a socket's frame;
//!               a priority tag (VLAN 0) is removed; others ─▶ kernel, packet socket
//!
//!   ESP         unfragmented IPv4 without options, or IPv6; no multicast, no IPv6 link-local
//!               ESP ─▶ socket
//!               UDP ─▶ to an ESP port, length within the packet, no IKE marker ─▶ socket
//!
//!   own ESP     the same ESP, to an address of the host ─▶ socket
//!
//!   passing     no multicast, not to the host; no IPv6 link-local address ─▶ socket
//! ```
//!
//! These are *sufficient* conditions: all such frames are the gateway's by the rules that keep the
//! host's stack out, and others of the gateway take the longer way. So the ESP selection needs no
//! host addresses and no updates.

use uxfrm_packet::Protocol;
use uxfrm_packet::ethernet::{EtherType, MacAddr};

use super::assembler::{
    Assembler, Comparison, END, FRAME, Instruction, JumpTarget, LEFT, QUEUE, R0, R1, R2, R3, RIGHT,
    START, Width, half,
};

/// Offsets of frame start, frame end and queue in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// `bpf_map_lookup_elem`, `bpf_xdp_adjust_head`, `bpf_redirect_map`, and `XDP_PASS`.
const LOOK_UP: i32 = 1;
const ADJUST_HEAD: i32 = 44;
const REDIRECT_MAP: i32 = 51;
const PASS: i32 = 2;

/// Length of the Ethernet header, of a VLAN tag, and offsets of the end of each IP header.
const ETHERNET: i16 = 14;
const TAG: i16 = 4;
const V4: i16 = ETHERNET + 20;
const V6: i16 = ETHERNET + 40;
/// UDP's header and a marker.
const MARKED: i16 = 8 + 4;

/// Bytes of an address in the map of host addresses: IPv4 is the last four behind zeros.
pub(super) const ADDRESS: usize = 16;

/// The program for ESP and for ESP in UDP at `ports`. `sockets` is a map by queue.
pub(super) fn esp(frames: FrameFilter, ports: &[u16], sockets: i32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    begin(&mut asm, frames);
    asm.label(JumpTarget::V4);
    whole_v4(&mut asm);
    to_no_group_v4(&mut asm);
    asm.field(Width::Byte, ETHERNET + 9);
    esp_or_udp(&mut asm, V4, (2, -20), ports, JumpTarget::MarkerV4);
    asm.label(JumpTarget::V6);
    asm.reach(V6);
    to_no_group_v6(&mut asm);
    asm.field(Width::Byte, ETHERNET + 6);
    esp_or_udp(&mut asm, V6, (4, 0), ports, JumpTarget::MarkerV6);
    end(&mut asm, sockets);
    asm.finish()
}

/// The program for ESP to the host itself. `own` is a map of the host's addresses, `sockets` one by
/// queue.
pub(super) fn own_esp(frames: FrameFilter, own: i32, sockets: i32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    begin(&mut asm, frames);
    asm.label(JumpTarget::V4);
    whole_v4(&mut asm);
    asm.field(Width::Byte, ETHERNET + 9);
    asm.jump(Comparison::NotEqual, Protocol::ESP.0.into(), JumpTarget::Pass);
    key_v4(&mut asm);
    asm.go(JumpTarget::Ask);
    asm.label(JumpTarget::V6);
    asm.reach(V6);
    asm.field(Width::Byte, ETHERNET + 6);
    asm.jump(Comparison::NotEqual, Protocol::ESP.0.into(), JumpTarget::Pass);
    not_link_local(&mut asm, ETHERNET + 24);
    key_v6(&mut asm);
    asm.label(JumpTarget::Ask);
    look_up(&mut asm, own);
    asm.jump_if_none(JumpTarget::Pass);
    asm.go(JumpTarget::Take);
    end(&mut asm, sockets);
    asm.finish()
}

/// The program for forwarded packets. `own` is a map of the host's addresses, `sockets` one by
/// queue.
pub(super) fn passing(frames: FrameFilter, own: i32, sockets: i32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    begin(&mut asm, frames);
    asm.label(JumpTarget::V4);
    to_no_group_v4(&mut asm);
    key_v4(&mut asm);
    asm.go(JumpTarget::Ask);
    asm.label(JumpTarget::V6);
    asm.reach(V6);
    to_no_group_v6(&mut asm);
    not_link_local(&mut asm, ETHERNET + 8);
    key_v6(&mut asm);
    asm.label(JumpTarget::Ask);
    look_up(&mut asm, own);
    asm.jump_if_none(JumpTarget::Take);
    asm.go(JumpTarget::Pass);
    end(&mut asm, sockets);
    asm.finish()
}

/// Frames that fit the sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameFilter {
    /// To this address.
    pub(super) mac: MacAddr,
    /// Longest frame: a device's MTU may be raised after its sockets were created.
    pub(super) most: u32,
}

/// Checks address, length and IP version.
fn begin(asm: &mut Assembler, FrameFilter { mac, most }: FrameFilter) {
    asm.copy(FRAME, R1);
    asm.load(Width::Word, QUEUE, FRAME, RX_QUEUE);
    find_frame(asm);
    asm.reach(V4);
    let [a, b, c, d, e, f] = mac.0;
    asm.field(Width::Word, 0);
    asm.jump_word(Comparison::NotEqual, i32::from_ne_bytes([a, b, c, d]), JumpTarget::Pass);
    asm.field(Width::Half, 4);
    asm.jump(Comparison::NotEqual, half([e, f]), JumpTarget::Pass);
    untag(asm);
    asm.label(JumpTarget::Untagged);
    asm.within(i32::try_from(most).unwrap_or(i32::MAX));
    asm.field(Width::Half, 12);
    asm.jump(Comparison::Equal, half(EtherType::IPV4.0.get().to_be_bytes()), JumpTarget::V4);
    asm.jump(Comparison::Equal, half(EtherType::IPV6.0.get().to_be_bytes()), JumpTarget::V6);
    asm.go(JumpTarget::Pass);
}

fn find_frame(asm: &mut Assembler) {
    asm.load(Width::Word, START, FRAME, DATA);
    asm.load(Width::Word, END, FRAME, DATA_END);
}

/// Removes a VLAN 0 tag by moving the addresses over it, as the kernel would. Other tags are the
/// kernel's.
fn untag(asm: &mut Assembler) {
    asm.field(Width::Half, 12);
    asm.jump(
        Comparison::NotEqual,
        half(EtherType::VLAN.0.get().to_be_bytes()),
        JumpTarget::Untagged,
    );
    asm.reach(V4 + TAG);
    asm.field(Width::Half, ETHERNET);
    asm.and(half([0x0f, 0xff]));
    asm.jump(Comparison::NotEqual, 0, JumpTarget::Pass);
    let addresses = [(R0, 0), (R2, 4), (R3, 8)];
    addresses.into_iter().for_each(|(register, at)| asm.load(Width::Word, register, START, at));
    addresses.into_iter().for_each(|(register, at)| asm.write(register, at + TAG));
    asm.copy(R1, FRAME);
    asm.set(R2, TAG.into());
    // Cannot fail: the frame is long enough.
    asm.call(ADJUST_HEAD);
    find_frame(asm);
    asm.reach(V4);
}

/// Unfragmented IPv4 without options.
fn whole_v4(asm: &mut Assembler) {
    asm.field(Width::Byte, ETHERNET);
    asm.jump(Comparison::NotEqual, 0x45, JumpTarget::Pass);
    // More-fragments flag or offset.
    asm.field(Width::Half, ETHERNET + 6);
    asm.and(half([0x3f, 0xff]));
    asm.jump(Comparison::NotEqual, 0, JumpTarget::Pass);
}

/// Puts the destination on the stack, as a key of the address map.
fn key_v4(asm: &mut Assembler) {
    asm.set(RIGHT, 0);
    [16, 12, 8].into_iter().for_each(|before_end| asm.store(RIGHT, before_end));
    asm.load(Width::Word, RIGHT, START, ETHERNET + 16);
    asm.store(RIGHT, 4);
}

/// As [`key_v4`].
fn key_v6(asm: &mut Assembler) {
    for (at, before_end) in [(24, 16), (28, 12), (32, 8), (36, 4)] {
        asm.load(Width::Word, RIGHT, START, ETHERNET + at);
        asm.store(RIGHT, before_end);
    }
}

/// Looks up the key on the stack in a map.
fn look_up(asm: &mut Assembler, map: i32) {
    asm.map(R1, map);
    asm.point(R2, 16);
    asm.call(LOOK_UP);
}

fn to_no_group_v4(asm: &mut Assembler) {
    asm.field(Width::Byte, ETHERNET + 16);
    asm.jump(Comparison::Above, 223, JumpTarget::Pass);
}

fn to_no_group_v6(asm: &mut Assembler) {
    asm.field(Width::Byte, ETHERNET + 24);
    asm.jump(Comparison::Equal, 0xff, JumpTarget::Pass);
    not_link_local(asm, ETHERNET + 24);
}

/// Passes frames with a link-local address.
fn not_link_local(asm: &mut Assembler, at: i16) {
    asm.field(Width::Half, at);
    asm.and(half([0xff, 0xc0]));
    asm.jump(Comparison::Equal, half([0xfe, 0x80]), JumpTarget::Pass);
}

/// Branches on the protocol behind an IP header that ends at `udp`; the length field is at an
/// offset of its own and differs by a constant.
fn esp_or_udp(
    asm: &mut Assembler,
    udp: i16,
    (length_at, more): (i16, i32),
    ports: &[u16],
    marker: JumpTarget,
) {
    asm.jump(Comparison::Equal, Protocol::ESP.0.into(), JumpTarget::Take);
    asm.jump(Comparison::NotEqual, Protocol::UDP.0.into(), JumpTarget::Pass);
    asm.reach(udp + MARKED);
    asm.load(Width::Half, RIGHT, START, ETHERNET + length_at);
    asm.number(RIGHT);
    asm.add(RIGHT, more);
    asm.field(Width::Half, udp + 4);
    asm.number(LEFT);
    asm.jump_register(Comparison::Above, JumpTarget::Pass);
    asm.jump(Comparison::Below, MARKED.into(), JumpTarget::Pass);
    asm.field(Width::Half, udp + 2);
    for port in ports {
        asm.jump(Comparison::Equal, half(port.to_be_bytes()), marker);
    }
    asm.go(JumpTarget::Pass);
    asm.label(marker);
    asm.field(Width::Word, udp + 8);
    asm.jump_word(Comparison::Equal, 0, JumpTarget::Pass);
    asm.go(JumpTarget::Take);
}

/// The targets: the queue's socket, or the kernel if there is none; or the kernel.
fn end(asm: &mut Assembler, sockets: i32) {
    asm.label(JumpTarget::Take);
    asm.map(R1, sockets);
    asm.copy(R2, QUEUE);
    asm.set(R3, PASS);
    asm.call(REDIRECT_MAP);
    asm.exit();
    asm.label(JumpTarget::Pass);
    asm.set(R0, PASS);
    asm.exit();
}
