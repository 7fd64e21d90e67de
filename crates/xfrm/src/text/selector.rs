//! Selectors and ids (`ip/ipxfrm.c: xfrm_selector_print, xfrm_id_info_print`).

use uxfrm_netlink::client::{RawAddress, RawId, RawSelector};

use super::{WipedText, family_or};
use crate::names;

const ICMP: u8 = 1;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;
const MOBILITY_HEADER: u8 = 135;

/// The outer half of a state or a template.
pub(super) struct Outer {
    pub(super) source: RawAddress,
    pub(super) id: RawId,
    pub(super) mode: u8,
    pub(super) reqid: u32,
    pub(super) family: u16,
    pub(super) spi: ShownSpi,
}

/// Whether an SPI of 0 is shown without `-s`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownSpi {
    Always,
    IfAny,
}

impl WipedText<'_> {
    /// `src … dst …` and the line below it; without a prefix before the first.
    pub(super) fn outer(&mut self, outer: &Outer, prefix: &str) {
        let address = |raw| names::address(outer.family, raw);
        let (source, destination) = (address(outer.source), address(outer.id.destination));
        self.put(format_args!("src {source} dst {destination}"));
        self.end_line();
        let protocol = names::ipsec_protocol(outer.id.protocol);
        self.put(format_args!("{prefix}\tproto {protocol} "));
        let spi = outer.id.spi.get();
        if self.shows_statistics() || outer.spi == ShownSpi::Always || spi != 0 {
            self.spi(spi);
        }
        self.put(format_args!("reqid {}", outer.reqid));
        if self.shows_statistics() {
            self.put(format_args!("(0x{:08x})", outer.reqid));
        }
        self.put(format_args!(" mode {}", names::mode(outer.mode)));
        self.end_line();
    }

    pub(super) fn spi(&mut self, spi: u32) {
        self.put(format_args!("spi 0x{spi:08x}"));
        if self.shows_statistics() {
            self.put(format_args!("({spi})"));
        }
        self.raw(" ");
    }

    /// A selector behind `title`; `family` is for one without.
    pub(super) fn selector(&mut self, selector: &RawSelector, family: u16, title: &str) {
        let family = family_or(selector.family, family, self.style);
        let (source, destination) =
            (names::address(family, selector.source), names::address(family, selector.destination));
        let (source_len, destination_len) = (selector.source_len, selector.destination_len);
        self.put(format_args!(
            "{title}src {source}/{source_len} dst {destination}/{destination_len} "
        ));
        if selector.protocol != 0 {
            let protocol = self.names.protocol(selector.protocol);
            self.put(format_args!("proto {protocol} "));
        }
        self.upper(selector);
        if selector.ifindex.cast_signed() > 0 {
            let device = self.names.device(selector.ifindex);
            self.put(format_args!("dev {device} "));
        }
        if self.shows_statistics() {
            self.put(format_args!("uid {}", selector.user));
        }
        self.end_line();
    }

    /// What the ports are to the protocol.
    fn upper(&mut self, selector: &RawSelector) {
        let (source, destination) = (selector.source_port.get(), selector.destination_port.get());
        let (has_source, has_destination) =
            (selector.source_port_mask.get() != 0, selector.destination_port_mask.get() != 0);
        let (first, second) = match selector.protocol {
            GRE => {
                if has_source || has_destination {
                    let key = u32::from(source) << 16 | u32::from(destination);
                    self.put(format_args!("key {key} "));
                }
                return;
            }
            MOBILITY_HEADER => {
                if has_source {
                    self.put(format_args!("type {source} "));
                }
                if has_destination && self.shows_statistics() {
                    // As it lies in memory.
                    let raw = destination.to_be();
                    self.put(format_args!("(dport) 0x{raw:04x} "));
                }
                return;
            }
            ICMP | ICMPV6 => ("type", "code"),
            _ => ("sport", "dport"),
        };
        if has_source {
            self.put(format_args!("{first} {source} "));
        }
        if has_destination {
            self.put(format_args!("{second} {destination} "));
        }
    }
}
