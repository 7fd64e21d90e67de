//! Instructions of the kernel's machine for packet programs, one after the other, with jumps forward to labels.
//!
//! See `Documentation/bpf/standardization/instruction-set.rst`. The verifier wants each load from a frame behind a comparison with the frame's end.

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    asm: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Where a jump goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// Without a tag, or no longer with one.
    Untagged,
    V4,
    V6,
    MarkerV4,
    MarkerV6,
    /// To the socket, unless it is for the host itself.
    Ask,
    /// To the socket.
    Take,
    /// To the kernel.
    Pass,
}

/// Comparisons, against a number or a register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// Bytes that a load takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// Registers: the answer, and arguments of calls, the first of which is the frame's description at the start.
pub(super) const R0: u8 = 0;
pub(super) const R1: u8 = 1;
pub(super) const R2: u8 = 2;
pub(super) const R3: u8 = 3;
/// What is looked at, and with what it is compared.
pub(super) const LEFT: u8 = 4;
pub(super) const RIGHT: u8 = 5;
/// Calls leave these alone: the frame's description, where the frame begins and ends, and the queue that it came by.
pub(super) const FRAME: u8 = 6;
pub(super) const START: u8 = 7;
pub(super) const END: u8 = 8;
pub(super) const QUEUE: u8 = 9;
/// The end of the stack.
const STACK: u8 = 10;

/// Instructions, and the jumps among them whose ends are not known yet.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    pub(super) fn load(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.push(0x61 | width as u8, to, from, offset, 0);
    }

    /// What stands at a place in the frame, in the order of its bytes.
    pub(super) fn field(&mut self, width: Width, at: i16) {
        self.load(width, LEFT, START, at);
    }

    pub(super) fn set(&mut self, register: u8, number: i32) {
        self.push(0xb7, register, 0, 0, number);
    }

    pub(super) fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    pub(super) fn add(&mut self, register: u8, number: i32) {
        self.push(0x07, register, 0, 0, number);
    }

    /// Keeps these bits of what is looked at.
    pub(super) fn and(&mut self, mask: i32) {
        self.push(0x57, LEFT, 0, 0, mask);
    }

    /// Two bytes in the network's order become a number.
    pub(super) fn number(&mut self, register: u8) {
        self.push(0xdc, register, 0, 0, 16);
    }

    /// Writes four bytes of a register so many bytes before the stack's end.
    pub(super) fn store(&mut self, register: u8, before_end: i16) {
        self.push(0x63, STACK, register, -before_end, 0);
    }

    /// Writes four bytes of a register to a place in the frame.
    pub(super) fn write(&mut self, register: u8, at: i16) {
        self.push(0x63, START, register, at, 0);
    }

    /// A register points so many bytes before the stack's end.
    pub(super) fn point(&mut self, register: u8, before_end: i32) {
        self.copy(register, STACK);
        self.add(register, -before_end);
    }

    /// A map by its descriptor: two instructions.
    pub(super) fn map(&mut self, register: u8, descriptor: i32) {
        self.push(0x18, register, 1, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }

    pub(super) fn call(&mut self, function: i32) {
        self.push(0x85, 0, 0, 0, function);
    }

    pub(super) fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    /// Frames with fewer bytes pass.
    pub(super) fn reach(&mut self, bytes: i16) {
        self.copy(LEFT, START);
        self.add(LEFT, bytes.into());
        self.jump_with(0x0d | Comparison::Above as u8, (LEFT, END), 0, Label::Pass);
    }

    /// Frames with more bytes pass.
    pub(super) fn within(&mut self, bytes: i32) {
        self.copy(LEFT, START);
        self.add(LEFT, bytes);
        self.jump_with(0x0d | Comparison::Below as u8, (LEFT, END), 0, Label::Pass);
    }

    pub(super) fn jump(&mut self, condition: Comparison, number: i32, label: Label) {
        self.jump_with(0x05 | condition as u8, (LEFT, 0), number, label);
    }

    /// As [`jump`](Self::jump), by all bits of a word and no sign.
    pub(super) fn jump_word(&mut self, condition: Comparison, number: i32, label: Label) {
        self.jump_with(0x06 | condition as u8, (LEFT, 0), number, label);
    }

    /// As [`jump`](Self::jump), of the two that are compared.
    pub(super) fn jump_register(&mut self, condition: Comparison, label: Label) {
        self.jump_with(0x0d | condition as u8, (LEFT, RIGHT), 0, label);
    }

    /// Where a call answered nothing.
    pub(super) fn jump_if_none(&mut self, label: Label) {
        self.jump_with(0x05 | Comparison::Equal as u8, (R0, 0), 0, label);
    }

    pub(super) fn go(&mut self, label: Label) {
        self.jump_with(0x05, (0, 0), 0, label);
    }

    pub(super) fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let end = self.labels.iter().find(|(of, _)| *of == label).map(|(_, end)| *end);
            // All labels are set, and all jumps lead forward by less than there are ports.
            let by = end.and_then(|end| i16::try_from(end.checked_sub(at + 1)?).ok());
            self.instructions[at].offset = by.unwrap_or(i16::MAX);
        }
        self.instructions
    }

    fn jump_with(&mut self, asm: u8, (left, right): (u8, u8), number: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(asm, left, right, 0, number);
    }

    fn push(&mut self, asm: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            asm,
            registers: registers(to, from),
            offset,
            immediate,
        });
    }
}

/// Two registers in the order of the bits of a byte here.
const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from }
}

/// Two bytes of a frame as a load of them gives them.
pub(super) fn half(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_their_labels() {
        let mut asm = Assembler::default();
        asm.jump(Comparison::Equal, 1, Label::Take);
        asm.go(Label::Pass);
        asm.label(Label::Take);
        asm.exit();
        asm.label(Label::Pass);
        asm.exit();
        let offsets = asm.finish().iter().map(|instruction| instruction.offset).collect::<Vec<_>>();
        assert_eq!(offsets, [1, 1, 0, 0]);
    }
}
