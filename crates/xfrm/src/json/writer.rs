//! JSON written straight onto a page, which is wiped: a tree of values would leave keys in memory.

use std::fmt::Display;

use crate::text::{Keys, WipedText};

/// An object being written.
pub(super) struct Object<'p, 'n> {
    page: &'p mut WipedText<'n>,
    depth: usize,
    is_empty: bool,
}

impl<'p, 'n> Object<'p, 'n> {
    pub(super) fn begin(page: &'p mut WipedText<'n>) -> Self {
        Self::at(page, 1)
    }

    fn at(page: &'p mut WipedText<'n>, depth: usize) -> Self {
        page.raw("{");
        Self { page, depth, is_empty: true }
    }

    pub(super) fn end(self) {
        if !self.is_empty {
            break_line(self.page, self.depth - 1);
        }
        self.page.raw("}");
    }

    /// An interface's name.
    pub(super) fn device(&self, index: u32) -> String {
        self.page.names().device(index)
    }

    /// Whether keys are shown.
    pub(super) fn keys(&self) -> Keys {
        self.page.keys()
    }

    pub(super) fn number(&mut self, name: &str, number: impl Display) {
        self.name(name);
        self.page.raw(&number.to_string());
    }

    /// `null` for none.
    pub(super) fn number_or_null(&mut self, name: &str, number: Option<u64>) {
        self.name(name);
        match number {
            Some(number) => self.page.raw(&number.to_string()),
            None => self.page.raw("null"),
        }
    }

    pub(super) fn flag(&mut self, name: &str, flag: bool) {
        self.name(name);
        self.page.raw(if flag { "true" } else { "false" });
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        quoted(self.page, text);
    }

    /// `"0x…"`, without a copy of the bytes elsewhere.
    pub(super) fn bytes(&mut self, name: &str, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.name(name);
        self.page.raw("\"0x");
        for byte in bytes {
            for half in [byte >> 4, byte & 0xf] {
                let digit = char::from(DIGITS[usize::from(half)]);
                self.page.raw(digit.encode_utf8(&mut [0; 4]));
            }
        }
        self.page.raw("\"");
    }

    pub(super) fn texts(&mut self, name: &str, texts: &[String]) {
        self.name(name);
        self.page.raw("[");
        for (place, text) in texts.iter().enumerate() {
            self.page.raw(if place == 0 { "" } else { "," });
            quoted(self.page, text);
        }
        self.page.raw("]");
    }

    pub(super) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_, 'n>)) {
        self.name(name);
        let mut inner = Object::at(self.page, self.depth + 1);
        fill(&mut inner);
        inner.end();
    }

    /// An array with an object for each of `all`.
    pub(super) fn objects<T>(
        &mut self,
        name: &str,
        all: impl Iterator<Item = T>,
        mut fill: impl FnMut(&mut Object<'_, 'n>, T),
    ) {
        self.name(name);
        self.page.raw("[");
        for (place, one) in all.enumerate() {
            self.page.raw(if place == 0 { "" } else { "," });
            let mut inner = Object::at(self.page, self.depth + 1);
            fill(&mut inner, one);
            inner.end();
        }
        self.page.raw("]");
    }

    fn name(&mut self, name: &str) {
        self.page.raw(if self.is_empty { "" } else { "," });
        self.is_empty = false;
        break_line(self.page, self.depth);
        quoted(self.page, name);
        self.page.raw(if self.page.is_pretty() { ": " } else { ":" });
    }
}

/// With `-p` each member has a line.
fn break_line(page: &mut WipedText<'_>, depth: usize) {
    if page.is_pretty() {
        page.raw("\n");
        (0..depth).for_each(|_| page.raw("    "));
    }
}

fn quoted(page: &mut WipedText<'_>, text: &str) {
    page.raw("\"");
    for character in text.chars() {
        match character {
            '"' => page.raw("\\\""),
            '\\' => page.raw("\\\\"),
            control if control < ' ' => page.raw(&format!("\\u{:04x}", u32::from(control))),
            other => page.raw(other.encode_utf8(&mut [0; 4])),
        }
    }
    page.raw("\"");
}
