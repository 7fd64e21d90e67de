//! `xfrm state add …`.

use uxfrm_crypto::KeyMaterial;
use uxfrm_engine::{Family, Mark, SaConfig, SaFlags, SaTransform, Selector, UdpEncap};

use super::{LineWriter, UnwritableError};
use crate::{
    grammar::{
        algorithm::HIDDEN_KEY,
        keyword::{MODES, OFFLOADS, STATE_DIRECTIONS, STATE_EXTRA_FLAGS, STATE_FLAGS},
        protocol,
    },
    text::Keys,
};

impl LineWriter<'_> {
    /// All but the numbers that were sent and received.
    pub(super) fn put_state(&mut self, config: &SaConfig) -> Result<(), UnwritableError> {
        let SaConfig {
            id,
            source,
            mode,
            reqid,
            acquire_seq,
            transform,
            selector,
            mark,
            output_mark,
            if_id,
            replay,
            limits,
            flags,
            extra_flags,
            encap,
            nat_keepalive,
            mapping_age,
            tfc_padding,
            direction,
            pcpu,
            care_of,
            offload,
        } = config;
        if care_of.is_some() {
            return Err(UnwritableError("a care-of address of a state with keys"));
        }
        let protocol = protocol::ipsec_name(id.protocol);
        self.put(format_args!(
            "xfrm state add src {source} dst {} proto {protocol}",
            id.destination
        ));
        self.put(format_args!(" spi {:#010x}", id.spi.0));
        self.choice("mode", &MODES, mode, "its mode")?;
        self.number("reqid", reqid.0);
        // As iproute2 sends it: in network byte order.
        self.number("seq", u32::from_be(*acquire_seq));
        self.mark(*mark)?;
        self.output_mark(*output_mark);
        self.number("if_id", if_id.0);
        self.number("replay-window", replay.window);
        self.flags("flag", &STATE_FLAGS, *flags);
        self.flags("extra-flag", &STATE_EXTRA_FLAGS, *extra_flags);
        if let Some(encap) = encap {
            self.encap(encap);
        }
        if let Some(offload) = offload {
            self.choice("offload", &OFFLOADS, &offload.kind, "its offload")?;
            self.numbered_device(&offload.device);
            self.choice("dir", &STATE_DIRECTIONS, &offload.direction, "its direction")?;
        }
        self.number("tfcpad", *tfc_padding);
        if let Some(direction) = direction {
            self.choice("dir", &STATE_DIRECTIONS, direction, "its direction")?;
        }
        match pcpu {
            Some(cpu) if cpu.0 == u32::MAX => return Err(UnwritableError("its CPU")),
            Some(cpu) => self.put(format_args!(" pcpu-num {}", cpu.0)),
            None => {}
        }
        if let Some(interval) = nat_keepalive {
            self.number("nat-keepalive", interval.0.get());
        }
        if let Some(seconds) = mapping_age {
            self.number("mtimer-thresh", seconds.get());
        }
        self.algorithms(transform)?;
        self.limits(limits);
        self.own_selector(selector.as_ref(), *flags, config.family())
    }

    /// `output-mark` can't say a mark that clears bits only, or none.
    fn output_mark(&mut self, Mark { value, mask }: Mark) {
        match (value, mask) {
            (0, 0) => {}
            (0, _) | (_, 0) => self.put(format_args!(" set-mark {value:#x} mask {mask:#x}")),
            (..) => self.put(format_args!(" output-mark {value:#x} mask {mask:#x}")),
        }
    }

    fn encap(&mut self, encap: &UdpEncap) {
        let UdpEncap { kind, source_port, destination_port, original_address } = encap;
        let kind = kind.properties().word;
        self.put(format_args!(" encap {kind} {source_port} {destination_port} {original_address}"));
    }

    fn algorithms(&mut self, words: &SaTransform) -> Result<(), UnwritableError> {
        let SaTransform { transform, encryption_key, authentication_key } = words;
        let icv_bits = transform.icv_len() * 8;
        let name = transform.name();
        let Some((cipher, auth)) = name.split_once('/') else {
            self.algorithm("aead", &name, encryption_key);
            self.put(format_args!(" {icv_bits}"));
            return Ok(());
        };
        if transform.authenticates() {
            self.algorithm("auth-trunc", auth, authentication_key);
            self.put(format_args!(" {icv_bits}"));
        } else if !authentication_key.is_empty() {
            return Err(UnwritableError("a key that nothing is authenticated with"));
        }
        self.algorithm("enc", cipher, encryption_key);
        Ok(())
    }

    fn algorithm(&mut self, word: &str, name: &str, key: &KeyMaterial) {
        self.put(format_args!(" {word} {name} "));
        if self.keys == Keys::Hidden {
            return self.raw(HIDDEN_KEY);
        }
        if key.is_empty() {
            return self.raw("''");
        }
        self.raw("0x");
        for byte in key.expose() {
            self.put(format_args!("{byte:02x}"));
        }
    }

    /// One for all of the state's family is what no word means, unless a flag says "either".
    fn own_selector(
        &mut self,
        selector: Option<&Selector>,
        flags: SaFlags,
        family: Family,
    ) -> Result<(), UnwritableError> {
        let is_either = flags.contains(SaFlags::AF_UNSPEC);
        match selector {
            None if is_either => Ok(()),
            Some(selector) if !is_either && *selector == Selector::any(family) => Ok(()),
            None => Err(UnwritableError("a selector without a family")),
            Some(selector) => {
                self.raw(" sel");
                self.selector(selector)
            }
        }
    }
}
