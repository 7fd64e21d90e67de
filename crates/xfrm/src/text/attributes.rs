//! The attributes of states and policies (`ip/ipxfrm.c: xfrm_xfrma_print`).

use std::fmt;

use uxfrm_netlink::{
    AttributeType,
    client::{
        RawAddress, RawEncap, RawLimits, RawMark, RawOffload, RawReplay, RawReplayEsn, RawTemplate,
        RawUsage, ReplyAttributes,
    },
};
use zerocopy::FromBytes as _;

use super::{
    WipedText,
    selector::{Outer, ShownSpi},
};
use crate::names;

/// `XFRM_OFFLOAD_INBOUND`, `_PACKET`
const OFFLOAD_INBOUND: u8 = 2;
const OFFLOAD_PACKET: u8 = 4;

/// Whether an offload's direction is its own or the policy's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OffloadDirection {
    Own,
    Policys,
}

/// iproute2 prints nothing behind an attribute that is too short.
struct Stop;

impl WipedText<'_> {
    /// All that are there, in iproute2's order.
    pub(super) fn attributes(
        &mut self,
        found: &ReplyAttributes<'_>,
        family: u16,
        prefix: &str,
        offload: OffloadDirection,
    ) {
        self.marks(found);
        self.algorithms(found, prefix);
        if self.middle(found, family, prefix).is_err() {
            self.truncated();
            self.end_line();
            return;
        }
        if self.offload(found, prefix, offload).is_err() {
            self.truncated();
            self.end_line();
            return;
        }
        self.numbers(found, prefix);
    }

    fn marks(&mut self, found: &ReplyAttributes<'_>) {
        let mark = found.read::<RawMark>(AttributeType::Mark);
        let output = found.read::<u32>(AttributeType::SetMark);
        if mark.is_none() && output.is_none() {
            return;
        }
        self.raw("\t");
        if let Some(mark) = mark {
            self.put(format_args!("mark {}/{} ", hash_hex(mark.value), hash_hex(mark.mask)));
        }
        if let Some(output) = output {
            self.put(format_args!("output-mark 0x{output:x}"));
            if let Some(mask) = found.read::<u32>(AttributeType::SetMarkMask) {
                self.put(format_args!("/0x{mask:x}"));
            }
        }
        self.end_line();
    }

    fn middle(
        &mut self,
        found: &ReplyAttributes<'_>,
        family: u16,
        prefix: &str,
    ) -> Result<(), Stop> {
        if let Some(value) = found.value(AttributeType::Encap) {
            self.put(format_args!("{prefix}encap "));
            let raw = read::<RawEncap>(value)?;
            self.put(format_args!(
                "type {} sport {} dport {} addr {}",
                names::encap(raw.kind),
                raw.source_port,
                raw.destination_port,
                names::address(family, raw.original_address),
            ));
            self.end_line();
        }
        if let Some(value) = found.value(AttributeType::Tmpl) {
            self.templates(value, prefix);
        }
        if let Some(value) = found.value(AttributeType::CoAddr) {
            self.put(format_args!("{prefix}coa "));
            let address = names::address(family, read::<RawAddress>(value)?);
            self.raw(&address);
            self.end_line();
        }
        if let Some(value) = found.value(AttributeType::LastUsed) {
            self.put(format_args!("{prefix}lastused "));
            let time = self.names.time(read::<u64>(value)?);
            self.raw(&time);
            self.end_line();
        }
        if let Some(value) = found.value(AttributeType::ReplayVal) {
            self.put(format_args!("{prefix}anti-replay context: "));
            let raw = read::<RawReplay>(value)?;
            let (received, sent, bitmap) = (raw.received, raw.sent, raw.bitmap);
            self.put(format_args!("seq 0x{received:x}, oseq 0x{sent:x}, bitmap 0x{bitmap:08x}"));
            self.end_line();
        }
        if let Some(value) = found.value(AttributeType::ReplayEsnVal) {
            self.put(format_args!("{prefix}anti-replay esn context:"));
            let (raw, bitmap) = RawReplayEsn::read_from_prefix(value).map_err(|_| Stop)?;
            self.end_line();
            self.long_replay(&raw, bitmap, prefix);
        }
        Ok(())
    }

    /// The bitmap from its highest word on, eight to a line.
    fn long_replay(&mut self, raw: &RawReplayEsn, bitmap: &[u8], prefix: &str) {
        let RawReplayEsn { words, sent, received, sent_high, received_high, window } = raw;
        self.put(format_args!(
            "{prefix} seq-hi 0x{received_high:x}, seq 0x{received:x}, oseq-hi 0x{sent_high:x}, oseq 0x{sent:x}"
        ));
        self.end_line();
        self.put(format_args!("{prefix} replay_window {window}, bitmap-length {words}"));
        let count = usize::try_from(*words).unwrap_or(usize::MAX);
        let bitmap = bitmap.chunks_exact(4).take(count).rev();
        for (place, word) in bitmap.enumerate() {
            if place % 8 == 0 {
                self.end_line();
                self.put(format_args!("{prefix} "));
            }
            let word = u32::read_from_bytes(word).unwrap_or(0);
            self.put(format_args!("{word:08x} "));
        }
        self.end_line();
    }

    fn offload(
        &mut self,
        found: &ReplyAttributes<'_>,
        prefix: &str,
        direction: OffloadDirection,
    ) -> Result<(), Stop> {
        let Some(value) = found.value(AttributeType::OffloadDev) else { return Ok(()) };
        self.put(format_args!("{prefix}crypto offload parameters: "));
        let raw = read::<RawOffload>(value)?;
        let device = self.names.device(raw.ifindex);
        self.put(format_args!("dev {device} "));
        if direction == OffloadDirection::Own {
            let inbound = raw.flags & OFFLOAD_INBOUND != 0;
            self.put(format_args!("dir {} ", if inbound { "in" } else { "out" }));
        }
        let packet = raw.flags & OFFLOAD_PACKET != 0;
        self.put(format_args!("mode {}", if packet { "packet" } else { "crypto" }));
        self.end_line();
        Ok(())
    }

    fn numbers(&mut self, found: &ReplyAttributes<'_>, prefix: &str) {
        if let Some(if_id) = found.read::<u32>(AttributeType::IfId) {
            self.put(format_args!("{prefix}if_id {}", hash_hex(if_id)));
            self.end_line();
        }
        if let Some(padding) = found.read::<u32>(AttributeType::TfcPad) {
            self.put(format_args!("{prefix}tfcpad {padding}"));
            self.end_line();
        }
        if let Some(direction) = found.read::<u8>(AttributeType::SaDir) {
            match direction {
                1 => self.raw("\tdir in"),
                2 => self.raw("\tdir out"),
                other => self.put(format_args!("\tdir other ({other})")),
            }
            self.end_line();
        }
        if let Some(number) = found.read::<u32>(AttributeType::SaPcpu) {
            self.put(format_args!("\tpcpu-num {number}"));
            self.end_line();
        }
        if let Some(seconds) = found.read::<u32>(AttributeType::NatKeepaliveInterval) {
            self.put(format_args!("\tnat-keepalive {seconds}"));
            self.end_line();
        }
        if let Some(seconds) = found.read::<u32>(AttributeType::MtimerThresh) {
            self.put(format_args!("\tmtimer-thresh {seconds}"));
            self.end_line();
        }
    }

    fn templates(&mut self, value: &[u8], prefix: &str) {
        let mut templates = value.chunks_exact(size_of::<RawTemplate>()).peekable();
        if templates.peek().is_none() {
            self.put(format_args!("{prefix}(ERROR \"tmpl\" truncated)"));
            self.end_line();
        }
        for bytes in templates {
            if let Ok(raw) = RawTemplate::read_from_bytes(bytes) {
                self.template(&raw, prefix);
            }
        }
    }

    fn template(&mut self, raw: &RawTemplate, prefix: &str) {
        let outer = Outer {
            source: raw.source,
            id: raw.id,
            mode: raw.mode,
            reqid: raw.reqid,
            family: raw.family,
            spi: ShownSpi::IfAny,
        };
        self.put(format_args!("{prefix}tmpl "));
        self.outer(&outer, prefix);
        if self.shows_statistics() || raw.optional != 0 {
            self.put(format_args!("{prefix}\t"));
            match raw.optional {
                0 => self.raw("level required "),
                1 => self.raw("level use "),
                number => self.put(format_args!("level {number} ")),
            }
            if self.shows_statistics() {
                self.put(format_args!("share {} ", names::share(raw.share)));
            }
            self.end_line();
        }
        if self.shows_statistics() {
            self.put(format_args!("{prefix}\t"));
            self.masks([
                raw.encryption_algorithms,
                raw.auth_algorithms,
                raw.compression_algorithms,
            ]);
            self.end_line();
        }
    }

    /// Which algorithms will do: `enc`, `auth`, `comp`.
    pub(super) fn masks(&mut self, [enc, auth, comp]: [u32; 3]) {
        self.put(format_args!("enc-mask {enc:08x} auth-mask {auth:08x} comp-mask {comp:08x}"));
    }

    /// `xfrm_lifetime_print`
    pub(super) fn lifetimes(&mut self, limits: &RawLimits, usage: &RawUsage, prefix: &str) {
        let line = |page: &mut Self, text: fmt::Arguments<'_>| {
            page.put(format_args!("{prefix}{text}"));
            page.end_line();
        };
        line(self, format_args!("lifetime config:"));
        let (soft, hard) = (limit(limits.soft_bytes), limit(limits.hard_bytes));
        line(self, format_args!("  limit: soft {soft}(bytes), hard {hard}(bytes)"));
        let (soft, hard) = (limit(limits.soft_packets), limit(limits.hard_packets));
        line(self, format_args!("  limit: soft {soft}(packets), hard {hard}(packets)"));
        let (soft, hard) = (limits.soft_added, limits.hard_added);
        line(self, format_args!("  expire add: soft {soft}(sec), hard {hard}(sec)"));
        let (soft, hard) = (limits.soft_used, limits.hard_used);
        line(self, format_args!("  expire use: soft {soft}(sec), hard {hard}(sec)"));
        line(self, format_args!("lifetime current:"));
        line(self, format_args!("  {}(bytes), {}(packets)", usage.bytes, usage.packets));
        let (added, used) = (self.names.time(usage.added), self.names.time(usage.used));
        line(self, format_args!("  add {added} use {used}"));
    }

    /// `xfrm_sec_ctx_print`
    pub(super) fn security_context(&mut self, found: &ReplyAttributes<'_>) {
        let Some(value) = found.value(AttributeType::SecCtx) else { return };
        self.raw("\tsecurity context ");
        match security_context(value) {
            Some(text) => self.put(format_args!("{text} ")),
            None => self.truncated(),
        }
        self.end_line();
    }

    /// Names of flags, a blank between them and none behind; bits without a name as a number.
    pub(super) fn flags(&mut self, bits: u32, known: &[(u32, &'static str)]) {
        let (set, rest) = names::flags(bits, known);
        self.raw(&set.join(" "));
        if rest != 0 {
            self.put(format_args!("{}{rest:x}", if set.is_empty() { "" } else { " " }));
        }
    }
}

/// The text of a context, up to its zero.
pub(crate) fn security_context(value: &[u8]) -> Option<String> {
    use uxfrm_netlink::client::RawSecurityContext;
    let (raw, text) = RawSecurityContext::read_from_prefix(value).ok()?;
    let text = &text[..text.len().min(usize::from(raw.text_len))];
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

fn read<T: zerocopy::FromBytes + zerocopy::Immutable>(value: &[u8]) -> Result<T, Stop> {
    T::read_from_prefix(value).map(|(value, _)| value).map_err(|_| Stop)
}

/// `%#x`
fn hash_hex(number: u32) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}

/// `strxf_limit`
fn limit(limit: u64) -> String {
    if limit == u64::MAX { "(INF)".to_owned() } else { limit.to_string() }
}
