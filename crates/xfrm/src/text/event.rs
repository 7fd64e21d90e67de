//! Events that are no state and no policy (`ip/xfrm_monitor.c`).

use uxfrm_netlink::client::{
    RawAcquire, RawAevent, RawMapping, RawReport, RawSaId, ReplyAttributes,
};

use super::{WipedText, attributes::OffloadDirection, family_or};
use crate::names;

impl WipedText<'_> {
    pub(super) fn acquire(&mut self, acquire: &RawAcquire, found: &ReplyAttributes<'_>) {
        let protocol = names::ipsec_protocol(acquire.id.protocol);
        self.put(format_args!("acquire proto {protocol} "));
        let spi = acquire.id.spi.get();
        if self.shows_statistics() || spi != 0 {
            self.spi(spi);
        }
        self.end_line();
        let family = family_or(acquire.selector.family, acquire.policy.selector.family, self.style);
        self.selector(&acquire.selector, family, "  sel ");
        self.policy_info(&acquire.policy, found, "    ", "  policy ");
        if self.shows_statistics() {
            self.put(format_args!("  seq 0x{:08} ", acquire.seq));
            self.masks([
                acquire.encryption_algorithms,
                acquire.auth_algorithms,
                acquire.compression_algorithms,
            ]);
        }
        self.end_line();
        self.end_answer();
    }

    pub(super) fn states_flushed(&mut self, protocol: u8) {
        self.put(format_args!("Flushed state proto {}", names::ipsec_protocol(protocol)));
        self.end_line();
        self.end_answer();
    }

    pub(super) fn policies_flushed(&mut self, found: &ReplyAttributes<'_>) {
        self.raw("Flushed policy ");
        self.kind(found);
        self.end_line();
        self.end_answer();
    }

    pub(super) fn report(&mut self, report: &RawReport, found: &ReplyAttributes<'_>) {
        self.put(format_args!("report proto {} ", names::ipsec_protocol(report.protocol)));
        self.end_line();
        let family = family_or(report.selector.family, 0, self.style);
        self.selector(&report.selector, family, "  sel ");
        self.attributes(found, family, "  ", OffloadDirection::Own);
        self.end_answer();
    }

    pub(super) fn aevent(&mut self, aevent: &RawAevent) {
        self.put(format_args!("Async event  (0x{:x}) ", aevent.flags));
        for (bit, name) in
            [(1 << 4, "replay update"), (1 << 5, "timer expired"), (1 << 6, "policy updated")]
        {
            if aevent.flags & bit != 0 {
                self.put(format_args!(" {name} "));
            }
        }
        let source = names::address(aevent.id.family, aevent.source);
        self.put(format_args!("\n\tsrc {source} "));
        self.id(&aevent.id, aevent.reqid);
    }

    pub(super) fn mapping(&mut self, mapping: &RawMapping) {
        let address = |raw| names::address(mapping.id.family, raw);
        let (old, new) = (address(mapping.old_source), address(mapping.new_source));
        let (old_port, new_port) = (mapping.old_source_port, mapping.new_source_port);
        self.put(format_args!("Mapping change {old}:{old_port} -> {new}:{new_port}\n\t"));
        self.id(&mapping.id, mapping.reqid);
    }

    /// `xfrm_usersa_print`
    fn id(&mut self, id: &RawSaId, reqid: u32) {
        let destination = names::address(id.family, id.destination);
        let protocol = self.names.protocol(id.protocol);
        let spi = id.spi.get();
        self.put(format_args!(
            "dst {destination}  reqid 0x{reqid:x} protocol {protocol}  SPI 0x{spi:x}\n"
        ));
    }
}
