//! Answers as text: a paragraph per device, in the style of `ip -d link show` and `ethtool -u`.

use std::fmt::{self, Write as _};

use super::{DeviceReport, EventReport, Fill, FunctionReport, LinkWord, StateReport, TableName};

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{}/{size}", self.used),
            None => write!(f, "{}/unlimited", self.used),
        }
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ifindex, profile, .. } = self;
        let link = word_of(self.link);
        write!(f, "{ifindex}: {name}: profile {profile} link {link}")?;
        if let Some(port) = &self.port {
            write!(f, " over {port}")?;
        }
        writeln!(f, "\n    features {}", self.features.join(" "))?;
        f.write_str("    states")?;
        for table in TableName::ALL {
            if let Some(fill) = self.tables.get(&table) {
                write!(f, " {} {fill}", table.as_str())?;
            }
        }
        writeln!(f, "\n    policies {}", self.policies)?;
        self.functions.iter().try_for_each(|function| writeln!(f, "    {function}"))?;
        f.write_str("    queues")?;
        self.queues.iter().try_for_each(|packets| write!(f, " {packets}"))?;
        f.write_char('\n')?;
        if let Some(rules) = &self.rules {
            writeln!(f, "    rules {rules}")?;
        }
        for flow in &self.flows {
            writeln!(f, "        {} loc {}", flow.rule, flow.loc)?;
        }
        for (word, way) in [("TX", &self.tx), ("RX", &self.rx)] {
            writeln!(
                f,
                "    {word} packets {} passed {} bytes {} dropped {} held {}",
                way.received, way.passed, way.bytes, way.dropped, way.held
            )?;
        }
        if !self.drops.is_empty() {
            f.write_str("    drops")?;
            self.drops.iter().try_for_each(|(why, count)| write!(f, " {why} {count}"))?;
            f.write_char('\n')?;
        }
        self.states.iter().try_for_each(|state| writeln!(f, "    {state}"))
    }
}

const fn word_of(link: Option<LinkWord>) -> &'static str {
    match link {
        Some(LinkWord::Up) => "up",
        Some(LinkWord::Down) | None => "down",
    }
}

impl fmt::Display for FunctionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vf, name, ifindex, link, trusted, receive, transmit } = self;
        let trust = if *trusted { "on" } else { "off" };
        let link = word_of(*link);
        write!(
            f,
            "vf {vf} {ifindex}: {name}: link {link} trust {trust} receive {receive} transmit {transmit}"
        )
    }
}

impl fmt::Display for StateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, handle, kind, dir, dst, spi, packets, bytes, oseq, seq, .. } = self;
        write!(f, "sa[{slot}] dst {dst} spi {spi:#010x} {kind} {dir} handle {handle}")?;
        if let Some(vf) = self.vf {
            write!(f, " vf {vf}")?;
        }
        write!(f, " packets {packets} bytes {bytes} oseq {oseq} seq {seq}")?;
        let Self { replay, replay_window, integrity_failed, .. } = self;
        write!(
            f,
            " replay {replay} replay-window {replay_window} integrity-failed {integrity_failed}"
        )
    }
}

impl fmt::Display for EventReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.event)?;
        if let Some(dst) = self.dst {
            write!(f, " dst {dst}")?;
        }
        if let Some(spi) = self.spi {
            write!(f, " spi {spi:#010x}")?;
        }
        self.handle.map_or(Ok(()), |handle| write!(f, " handle {handle}"))
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_engine::DeviceId;

    use super::*;
    use crate::{ModelNic, NicSetup, Profile, Trust, VirtualFunction, profile::TableSizes};

    #[test]
    fn report_text_has_paragraph_per_device() {
        let mut setup = NicSetup::new(Profile::by_name("niantic").unwrap(), DeviceId(7));
        setup.functions.push(VirtualFunction {
            device: DeviceId(8),
            trust: Trust::Untrusted,
            share: TableSizes { receive: Some(512), ..TableSizes::default() },
            addresses: Vec::new(),
        });
        let mut nic = ModelNic::new(setup).unwrap();
        let rule = "flow-type esp4 spi 0x7 action 3 loc 5";
        nic.change_rule(rule.parse().unwrap()).unwrap();
        let report = DeviceReport::of(&nic, "nic0", Some("eth0"), &["nic0v0".to_owned()]);
        assert_eq!(
            report.to_string(),
            "7: nic0: profile niantic link up over eth0
    features esp-hw-offload tx-esp-segmentation esp-tx-csum-hw-offload marks
    states receive 0/1024 transmit 0/1024 both 0/unlimited addresses 0/128
    policies 0
    vf 0 8: nic0v0: link up trust off receive 0/512 transmit 0/unlimited
    queues 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    rules 1/2048
        flow-type esp4 spi 7 action 3 loc 5
    TX packets 0 passed 0 bytes 0 dropped 0 held 0
    RX packets 0 passed 0 bytes 0 dropped 0 held 0
"
        );
    }
}
