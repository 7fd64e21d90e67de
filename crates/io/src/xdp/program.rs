//! Which frames the driver hands to the gateway's sockets: ESP, and ESP in UDP, to the device's own Ethernet address.
//!
//! ```text
//!   Ethernet  to the device, untagged, IPv4 or IPv6                      all else ─▶ the kernel, and by it the packet socket
//!   IPv4      without options, in one piece, to no multicast address
//!   IPv6      to no multicast and no link-local address
//!   next is   ESP ─▶ socket                UDP ─▶ to one of the ports, its length within the packet, no marker of IKE ─▶ socket
//! ```
//!
//! A *sufficient* sentence: all of these are the gateway's by the rules that keep the host's stack out, and what of the gateway's this
//! does not know goes the longer way. So it needs no address of the host, and no word when one changes.
//! The code is for the machine of `Documentation/bpf/standardization/instruction-set.rst`; the verifier wants each load behind a comparison
//! with the packet's end.

use uxfrm_packet::Protocol;
use uxfrm_packet::ethernet::{EtherType, MacAddr};

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Where a jump goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    V4,
    V6,
    MarkerV4,
    MarkerV6,
    /// To the socket.
    Take,
    /// To the kernel.
    Pass,
}

/// Comparisons, against a number or a register.
#[derive(Clone, Copy, Debug)]
enum If {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// Bytes that a load takes.
#[derive(Clone, Copy, Debug)]
enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// Registers: the answer and arguments of calls, the first of which is the frame's description; then what is ours.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
/// What is looked at, and with what it is compared.
const R4: u8 = 4;
const R5: u8 = 5;
/// Where the frame begins and ends, and the queue that it came by.
const START: u8 = 7;
const END: u8 = 8;
const QUEUE: u8 = 9;

/// Where in `struct xdp_md` the frame's ends and its queue are.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// `bpf_redirect_map`, and `XDP_PASS`.
const REDIRECT_MAP: i32 = 51;
const PASS: i32 = 2;

/// Bytes of Ethernet's header; of the shortest frame that is looked into, and of one with UDP over IPv6 up to its marker's end.
const ETHERNET: i16 = 14;
const SHORTEST: i32 = 14 + 40;
const WITH_MARKER_V6: i32 = 14 + 40 + 8 + 4;

/// The program of a device with the address `mac`, for ESP and for ESP in UDP at `ports`. `sockets` is a map by queue.
pub(super) fn esp(mac: MacAddr, ports: &[u16], sockets: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    code.load(Width::Word, START, R1, DATA);
    code.load(Width::Word, END, R1, DATA_END);
    code.load(Width::Word, QUEUE, R1, RX_QUEUE);
    code.reach(SHORTEST);
    let [a, b, c, d, e, f] = mac.0;
    code.field(Width::Word, 0);
    code.jump_word(If::NotEqual, i32::from_ne_bytes([a, b, c, d]), Label::Pass);
    code.field(Width::Half, 4);
    code.jump(If::NotEqual, half([e, f]), Label::Pass);
    code.field(Width::Half, 12);
    code.jump(If::Equal, half(EtherType::IPV4.0.get().to_be_bytes()), Label::V4);
    code.jump(If::Equal, half(EtherType::IPV6.0.get().to_be_bytes()), Label::V6);
    code.go(Label::Pass);
    code.v4(ports);
    code.v6(ports);
    code.ends(sockets);
    code.finish()
}

/// Instructions, and the jumps among them whose ends are not known yet.
#[derive(Debug, Default)]
struct Code {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Code {
    fn v4(&mut self, ports: &[u16]) {
        self.label(Label::V4);
        self.field(Width::Byte, ETHERNET);
        self.jump(If::NotEqual, 0x45, Label::Pass);
        // More fragments, or one's place.
        self.field(Width::Half, ETHERNET + 6);
        self.and(half([0x3f, 0xff]));
        self.jump(If::NotEqual, 0, Label::Pass);
        self.field(Width::Byte, ETHERNET + 16);
        self.jump(If::Above, 223, Label::Pass);
        self.field(Width::Byte, ETHERNET + 9);
        self.jump(If::Equal, Protocol::ESP.0.into(), Label::Take);
        self.jump(If::NotEqual, Protocol::UDP.0.into(), Label::Pass);
        self.udp(20, (2, -20), ports, Label::MarkerV4);
    }

    fn v6(&mut self, ports: &[u16]) {
        self.label(Label::V6);
        self.field(Width::Byte, ETHERNET + 24);
        self.jump(If::Equal, 0xff, Label::Pass);
        self.field(Width::Half, ETHERNET + 24);
        self.and(half([0xff, 0xc0]));
        self.jump(If::Equal, half([0xfe, 0x80]), Label::Pass);
        self.field(Width::Byte, ETHERNET + 6);
        self.jump(If::Equal, Protocol::ESP.0.into(), Label::Take);
        self.jump(If::NotEqual, Protocol::UDP.0.into(), Label::Pass);
        self.reach(WITH_MARKER_V6);
        self.udp(40, (4, 0), ports, Label::MarkerV6);
    }

    /// UDP behind an IP header of so many bytes, which says at a place how many there are, and how many more or fewer follow it.
    fn udp(&mut self, header: i16, (length_at, more): (i16, i32), ports: &[u16], marker: Label) {
        let udp = ETHERNET + header;
        self.load(Width::Half, R5, START, ETHERNET + length_at);
        self.big_endian(R5);
        self.push(0x07, R5, 0, 0, more);
        self.field(Width::Half, udp + 4);
        self.big_endian(R4);
        self.jump_register(If::Above, Label::Pass);
        self.jump(If::Below, 8 + 4, Label::Pass);
        self.field(Width::Half, udp + 2);
        for port in ports {
            self.jump(If::Equal, half(port.to_be_bytes()), marker);
        }
        self.go(Label::Pass);
        self.label(marker);
        self.field(Width::Word, udp + 8);
        self.jump_word(If::Equal, 0, Label::Pass);
        self.go(Label::Take);
    }

    /// To the socket of the frame's queue, to the kernel where it has none; or to the kernel.
    fn ends(&mut self, sockets: i32) {
        self.label(Label::Take);
        // Two instructions: the map in its first register, by descriptor.
        self.push(0x18, R1, 1, 0, sockets);
        self.push(0, 0, 0, 0, 0);
        self.push(0xbf, R2, QUEUE, 0, 0);
        self.push(0xb7, R3, 0, 0, PASS);
        self.push(0x85, 0, 0, 0, REDIRECT_MAP);
        self.push(0x95, 0, 0, 0, 0);
        self.label(Label::Pass);
        self.push(0xb7, R0, 0, 0, PASS);
        self.push(0x95, 0, 0, 0, 0);
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: registers(to, from),
            offset,
            immediate,
        });
    }

    fn load(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.push(0x61 | width as u8, to, from, offset, 0);
    }

    /// What stands at a place in the frame, in the order of its bytes.
    fn field(&mut self, width: Width, at: i16) {
        self.load(width, R4, START, at);
    }

    fn and(&mut self, mask: i32) {
        self.push(0x57, R4, 0, 0, mask);
    }

    fn big_endian(&mut self, register: u8) {
        self.push(0xdc, register, 0, 0, 16);
    }

    /// Frames with fewer bytes pass.
    fn reach(&mut self, bytes: i32) {
        self.push(0xbf, R4, START, 0, 0);
        self.push(0x07, R4, 0, 0, bytes);
        self.jumps.push((self.instructions.len(), Label::Pass));
        self.push(0x0d | If::Above as u8, R4, END, 0, 0);
    }

    fn jump(&mut self, condition: If, number: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x05 | condition as u8, R4, 0, 0, number);
    }

    /// As [`jump`](Self::jump), by all bits of a word and no sign.
    fn jump_word(&mut self, condition: If, number: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x06 | condition as u8, R4, 0, 0, number);
    }

    fn jump_register(&mut self, condition: If, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x0d | condition as u8, R4, R5, 0, 0);
    }

    fn go(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x05, 0, 0, 0, 0);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let end = self.labels.iter().find(|(of, _)| *of == label).map(|(_, end)| *end);
            // All labels are set, and all jumps lead forward by less than there are ports.
            let by = end.and_then(|end| i16::try_from(end.checked_sub(at + 1)?).ok());
            self.instructions[at].offset = by.unwrap_or(i16::MAX);
        }
        self.instructions
    }
}

/// Two registers in the order of the bits of a byte here.
const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from }
}

/// Two bytes of a frame as a load of them gives them.
fn half(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jumps_lead_forward_to_an_instruction() {
        let code = esp(MacAddr([1, 2, 3, 4, 5, 6]), &[4500, 4501], 3);
        for (at, instruction) in code.iter().enumerate() {
            let is_jump =
                matches!(instruction.code & 7, 5 | 6) && !matches!(instruction.code, 0x85 | 0x95);
            if is_jump {
                let end = at + 1 + usize::try_from(instruction.offset).unwrap();
                assert!(end < code.len(), "{at}: {instruction:?}");
            } else if instruction.code != 0x61
                && instruction.code != 0x69
                && instruction.code != 0x71
            {
                assert_eq!(instruction.offset, 0, "{at}: {instruction:?}");
            }
        }
        assert_eq!(code.last().map(|last| last.code), Some(0x95));
    }
}
