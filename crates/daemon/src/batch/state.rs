//! Turns a state of a batch file into one that the databases take.

use uxfrm_engine::{Cpu, Family, ReplayConfig, SaConfig, SaFlags, Selector, UdpEncap};
use uxfrm_xfrm::grammar::{
    EncapArgs, ReplayArgs, SelectorFilter, StateArgs, StateClause, SyntaxError,
};

use super::algorithm;

/// What the kernel makes of what `ip` sends for it.
pub(super) fn config(words: StateArgs) -> Result<Box<SaConfig>, SyntaxError> {
    let family = Family::of(words.id.destination);
    let (mut encap, mut care_of, mut algorithms) = (None, None, Vec::new());
    for part in words.parts {
        match part {
            StateClause::Encap(words) => encap = Some(words),
            StateClause::CareOf(address) => care_of = Some(address),
            // Taken and not kept, as by a kernel without a security module.
            StateClause::Context(_) => {}
            StateClause::Algorithm(algorithm) => algorithms.push(algorithm),
        }
    }
    Ok(Box::new(SaConfig {
        id: words.id,
        source: words.source,
        mode: words.mode,
        reqid: words.reqid,
        acquire_seq: words.acquire_seq.to_be(),
        transform: algorithm::transform(algorithms, words.end)?,
        selector: selector_of(words.selector, words.flags, family),
        mark: words.mark,
        output_mark: words.output_mark.mark(),
        if_id: words.if_id.unwrap_or_default(),
        replay: replay(words.replay, words.flags),
        limits: words.limits,
        flags: words.flags,
        extra_flags: words.extra_flags,
        encap: encap.map(|encap| udp_encap(encap, family)),
        nat_keepalive: words.nat_keepalive,
        mapping_age: words.mapping_age,
        tfc_padding: words.tfc_padding,
        direction: words.direction,
        pcpu: words.pcpu.map(Cpu),
        care_of,
        offload: words.offload,
    }))
}

/// Upper halves count with ESN only.
fn replay(words: ReplayArgs, flags: SaFlags) -> ReplayConfig {
    let esn = flags.contains(SaFlags::ESN);
    let joined =
        |[lower, upper]: [u32; 2]| u64::from(lower) | if esn { u64::from(upper) << 32 } else { 0 };
    ReplayConfig {
        window: words.window,
        sent: joined(words.sent),
        received: joined(words.received),
    }
}

fn udp_encap(words: EncapArgs, family: Family) -> UdpEncap {
    UdpEncap {
        kind: words.kind,
        source_port: words.source_port,
        destination_port: words.destination_port,
        original_address: words.original_address.unwrap_or_else(|| family.unspecified()),
    }
}

/// What the kernel makes of the selector (`net/xfrm/xfrm_user.c: copy_from_user_state`): one
/// without a family gets the state's, unless `flag af-unspec` says that it may carry either.
fn selector_of(words: Option<SelectorFilter>, flags: SaFlags, family: Family) -> Option<Selector> {
    let words = words.unwrap_or_default();
    if words.family.is_none() && flags.contains(SaFlags::AF_UNSPEC) {
        return None;
    }
    Some(words.selector(family))
}
