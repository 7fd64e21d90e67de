//! Validation of a new SA: the kernel's checks in the kernel's order, so that of two faults the
//! same one is reported.

use crate::{
    Direction, Error, Family, Mode, SaConfig, SaProtocol, Selector, Spi,
    sa::{
        config::{SaExtraFlags, SaFlags},
        replay::MAX_WINDOW,
    },
};

/// `net/xfrm/xfrm_user.c: verify_newsa_info`, `verify_replay`, then
/// `net/xfrm/xfrm_state.c: __xfrm_init_state`, `xfrm_init_replay`.
pub(crate) fn verify(config: &SaConfig) -> Result<(), Error> {
    verify_words(config)?;
    verify_replay(config)?;
    verify_direction(config)?;
    verify_supported(config)?;
    verify_keepalive(config)?;
    if config.flags.contains(SaFlags::ESN)
        && config.replay.window == 0
        && config.direction != Some(Direction::Out)
    {
        return Err(Error::EsnWithoutWindow);
    }
    verify_offload(config)
}

/// Defaults that the kernel fills in: an SA without selector is for its own family, unless it has
/// `af-unspec`.
pub(crate) fn complete(config: &mut SaConfig) {
    if config.selector.is_none() && !config.flags.contains(SaFlags::AF_UNSPEC) {
        config.selector = Some(Selector::any(config.family()));
    }
}

fn verify_words(config: &SaConfig) -> Result<(), Error> {
    let selector_is_mixed =
        |selector: &Selector| selector.source.family() != selector.destination.family();
    if Family::of(config.source) != config.family() {
        return Err(Error::Family);
    }
    if config.selector.as_ref().is_some_and(selector_is_mixed) {
        return Err(Error::StateSelectorFamily);
    }
    match config.id.protocol {
        SaProtocol::Esp if config.id.spi == Spi(0) => return Err(Error::SpiZero),
        SaProtocol::Esp if config.tfc_padding != 0 && config.mode != Mode::Tunnel => {
            return Err(Error::TfcPaddingMode);
        }
        SaProtocol::Any => return Err(Error::Protocol),
        SaProtocol::Esp
        | SaProtocol::Ah
        | SaProtocol::Comp
        | SaProtocol::Route2
        | SaProtocol::Hao => {}
    }
    if config.mode == Mode::InTrigger {
        return Err(Error::Mode);
    }
    Ok(())
}

fn verify_replay(config: &SaConfig) -> Result<(), Error> {
    let replay = &config.replay;
    if replay.window > MAX_WINDOW {
        return Err(Error::WindowTooLarge);
    }
    let short = !config.flags.contains(SaFlags::ESN);
    let received_too_high = short && replay.received > u64::from(u32::MAX);
    if received_too_high || replay.sent > config.last_number() {
        return Err(Error::SequenceWithoutEsn);
    }
    Ok(())
}

fn verify_direction(config: &SaConfig) -> Result<(), Error> {
    match config.direction {
        None if config.pcpu.is_some() => Err(Error::PcpuWithoutDirection),
        None => Ok(()),
        Some(Direction::Out) => verify_output(config),
        Some(Direction::In) => verify_input(config),
        Some(Direction::Forward) => Err(Error::StateDirection),
    }
}

fn verify_output(config: &SaConfig) -> Result<(), Error> {
    let inputs_only = [
        (SaFlags::DECAP_DSCP, "DECAP_DSCP"),
        (SaFlags::ICMP, "ICMP"),
        (SaFlags::WILDRECV, "WILDRECV"),
    ];
    if let Some((_, name)) = inputs_only.iter().find(|(flag, _)| config.flags.contains(*flag)) {
        return Err(Error::OutputFlag(name));
    }
    if config.replay.window != 0 {
        return Err(Error::OutputWindow);
    }
    if config.replay.received != 0 {
        return Err(Error::OutputReceived);
    }
    Ok(())
}

fn verify_input(config: &SaConfig) -> Result<(), Error> {
    if config.flags.contains(SaFlags::NOPMTUDISC) {
        return Err(Error::InputFlag("NOPMTUDISC"));
    }
    let outputs_only = [
        (SaExtraFlags::DONT_ENCAP_DSCP, "DONT_ENCAP_DSCP"),
        (SaExtraFlags::OSEQ_MAY_WRAP, "OSEQ_MAY_WRAP"),
    ];
    let set = outputs_only.iter().find(|(flag, _)| config.extra_flags.contains(*flag));
    if let Some((_, name)) = set {
        return Err(Error::InputFlag(name));
    }
    if config.replay.sent != 0 {
        return Err(Error::InputSent);
    }
    Ok(())
}

/// The kernel's tables of modes and types; here they hold transport, tunnel and ESP.
fn verify_supported(config: &SaConfig) -> Result<(), Error> {
    let family = config.selector.as_ref().map(Selector::family);
    match config.mode {
        Mode::Tunnel => {}
        Mode::Transport if family.is_none() => return Err(Error::UnspecifiedSelector),
        Mode::Transport if family != Some(config.family()) => return Err(Error::FamilyChange),
        Mode::Transport => {}
        Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
            return Err(Error::ModeNotFound);
        }
    }
    match config.id.protocol {
        SaProtocol::Esp => {}
        SaProtocol::Ah
        | SaProtocol::Comp
        | SaProtocol::Route2
        | SaProtocol::Hao
        | SaProtocol::Any => return Err(Error::TypeNotFound),
    }
    match config.encap {
        Some(encap) if !encap.kind.properties().is_processed => Err(Error::Encapsulation),
        Some(_) | None => Ok(()),
    }
}

fn verify_keepalive(config: &SaConfig) -> Result<(), Error> {
    if config.nat_keepalive.is_none() {
        return Ok(());
    }
    if config.direction != Some(Direction::Out) {
        return Err(Error::KeepaliveDirection);
    }
    match config.encap {
        Some(encap) if encap.kind.properties().allows_keepalives => Ok(()),
        Some(_) | None => Err(Error::KeepaliveEncapsulation),
    }
}

/// `net/xfrm/xfrm_device.c: xfrm_dev_state_add`, up to the device look-up.
fn verify_offload(config: &SaConfig) -> Result<(), Error> {
    let Some(offload) = &config.offload else { return Ok(()) };
    if config.direction.is_some_and(|direction| direction != offload.direction) {
        return Err(Error::OffloadDirection);
    }
    if offload.direction == Direction::In && config.if_id.0 != 0 {
        return Err(Error::OffloadIfId);
    }
    if config.tfc_padding != 0 {
        return Err(Error::OffloadTfcPadding);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
