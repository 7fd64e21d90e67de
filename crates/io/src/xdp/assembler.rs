//! An assembler for BPF instructions, with forward jumps to labels.
//!
//! See `Documentation/bpf/standardization/instruction-set.rst`. The verifier demands a comparison
//! with the frame's end before each load from the frame.

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    asm: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Jump targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JumpTarget {
    /// Untagged frame, or its tag was removed.
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

/// Comparisons with a number or a register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// Sizes of loads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// Registers: result, and call arguments, the first of which is the context at the start.
pub(super) const R0: u8 = 0;
pub(super) const R1: u8 = 1;
pub(super) const R2: u8 = 2;
pub(super) const R3: u8 = 3;
/// Left and right operand of comparisons.
pub(super) const LEFT: u8 = 4;
pub(super) const RIGHT: u8 = 5;
/// Registers that calls preserve: context, frame start and end, receive queue.
pub(super) const FRAME: u8 = 6;
pub(super) const START: u8 = 7;
pub(super) const END: u8 = 8;
pub(super) const QUEUE: u8 = 9;
/// The end of the stack.
const STACK: u8 = 10;

/// Instructions, and jumps whose targets are not known yet.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, JumpTarget)>,
    labels: Vec<(JumpTarget, usize)>,
}

impl Assembler {
    pub(super) fn load(&mut self, width: Width, to: u8, from: u8, offset: i16) {
        self.push(0x61 | width as u8, to, from, offset, 0);
    }

    /// Loads a field of the frame, without byte swap.
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

    /// Masks the left operand.
    pub(super) fn and(&mut self, mask: i32) {
        self.push(0x57, LEFT, 0, 0, mask);
    }

    /// Converts two bytes from network order.
    pub(super) fn number(&mut self, register: u8) {
        self.push(0xdc, register, 0, 0, 16);
    }

    /// Stores four bytes of a register on the stack.
    pub(super) fn store(&mut self, register: u8, before_end: i16) {
        self.push(0x63, STACK, register, -before_end, 0);
    }

    /// Stores four bytes of a register in the frame.
    pub(super) fn write(&mut self, register: u8, at: i16) {
        self.push(0x63, START, register, at, 0);
    }

    /// Points a register to a place on the stack.
    pub(super) fn point(&mut self, register: u8, before_end: i32) {
        self.copy(register, STACK);
        self.add(register, -before_end);
    }

    /// Loads a map by its descriptor: two instructions.
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

    /// Passes frames with fewer bytes.
    pub(super) fn reach(&mut self, bytes: i16) {
        self.copy(LEFT, START);
        self.add(LEFT, bytes.into());
        self.jump_with(0x0d | Comparison::Above as u8, (LEFT, END), 0, JumpTarget::Pass);
    }

    /// Passes frames with more bytes.
    pub(super) fn within(&mut self, bytes: i32) {
        self.copy(LEFT, START);
        self.add(LEFT, bytes);
        self.jump_with(0x0d | Comparison::Below as u8, (LEFT, END), 0, JumpTarget::Pass);
    }

    pub(super) fn jump(&mut self, condition: Comparison, number: i32, label: JumpTarget) {
        self.jump_with(0x05 | condition as u8, (LEFT, 0), number, label);
    }

    /// As [`jump`](Self::jump), on unsigned words.
    pub(super) fn jump_word(&mut self, condition: Comparison, number: i32, label: JumpTarget) {
        self.jump_with(0x06 | condition as u8, (LEFT, 0), number, label);
    }

    /// As [`jump`](Self::jump), between both operands.
    pub(super) fn jump_register(&mut self, condition: Comparison, label: JumpTarget) {
        self.jump_with(0x0d | condition as u8, (LEFT, RIGHT), 0, label);
    }

    /// Jumps if a call returned null.
    pub(super) fn jump_if_none(&mut self, label: JumpTarget) {
        self.jump_with(0x05 | Comparison::Equal as u8, (R0, 0), 0, label);
    }

    pub(super) fn go(&mut self, label: JumpTarget) {
        self.jump_with(0x05, (0, 0), 0, label);
    }

    pub(super) fn label(&mut self, label: JumpTarget) {
        self.labels.push((label, self.instructions.len()));
    }

    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let end = self.labels.iter().find(|(of, _)| *of == label).map(|(_, end)| *end);
            // All labels are set, and all jumps are forward and shorter than the port list's limit.
            let by = end.and_then(|end| i16::try_from(end.checked_sub(at + 1)?).ok());
            self.instructions[at].offset = by.unwrap_or(i16::MAX);
        }
        self.instructions
    }

    fn jump_with(&mut self, asm: u8, (left, right): (u8, u8), number: i32, label: JumpTarget) {
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

/// Both register numbers in one byte, in native bit order.
const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from }
}

/// Two bytes as a load of the frame reads them.
pub(super) fn half(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembler_resolves_forward_jumps() {
        let mut asm = Assembler::default();
        asm.jump(Comparison::Equal, 1, JumpTarget::Take);
        asm.go(JumpTarget::Pass);
        asm.label(JumpTarget::Take);
        asm.exit();
        asm.label(JumpTarget::Pass);
        asm.exit();
        let offsets = asm.finish().iter().map(|instruction| instruction.offset).collect::<Vec<_>>();
        assert_eq!(offsets, [1, 1, 0, 0]);
    }
}
