//! Prints steps as lines: `+` added, `~` changed, `-` removed. No key is in them.

use uxfrm_engine::{
    Action, Direction, Mark, Policy, PolicyKind, PortMask, SaConfig, SaId, SaProtocol, Selector,
};

use super::step::{Policies, States, Step};

pub(super) fn step(step: &Step) -> String {
    match step {
        Step::State(States::Add(config)) => format!("+ {}", state(config)),
        Step::State(States::Update(config) | States::Continue(config)) => {
            format!("~ {} (goes on)", state(config))
        }
        Step::State(States::Replace(config)) => format!("~ {} (begins anew)", state(config)),
        Step::State(States::Remove(id, mark)) => {
            format!("- state {}{}", of_id(*id), of_mark(*mark))
        }
        Step::Policy(Policies::Add(added)) => format!("+ {}", policy(added)),
        Step::Policy(Policies::Update(updated)) => format!("~ {}", policy(updated)),
        Step::Policy(Policies::Move(moved)) => format!("~ {} (stands elsewhere)", policy(moved)),
        Step::Policy(Policies::Remove(removed)) => gone(removed),
        Step::Defaults(defaults) => format!(
            "~ policy setdefault in {} fwd {} out {}",
            of_default(defaults.inbound),
            of_default(defaults.forward),
            of_default(defaults.outbound)
        ),
    }
}

/// A policy that went.
pub(super) fn gone(removed: &Policy) -> String {
    format!("- {}", policy(removed))
}

const fn of_default(action: Action) -> &'static str {
    match action {
        Action::Allow => "accept",
        Action::Block => "block",
    }
}

fn state(config: &SaConfig) -> String {
    format!("state src {} {}{}", config.source, of_id(config.id), of_mark(config.mark))
}

fn of_id(SaId { destination, spi, protocol }: SaId) -> String {
    let protocol = match protocol {
        SaProtocol::Esp => "esp",
        SaProtocol::Ah => "ah",
        SaProtocol::Comp => "comp",
        SaProtocol::Route2 => "route2",
        SaProtocol::Hao => "hao",
        SaProtocol::Any => "any",
    };
    format!("dst {destination} proto {protocol} spi {:#010x}", spi.0)
}

fn of_mark(mark: Mark) -> String {
    if mark == Mark::default() {
        return String::new();
    }
    format!(" mark {:#x} mask {:#x}", mark.value, mark.mask)
}

fn policy(policy: &Policy) -> String {
    let direction = match policy.direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Forward => "fwd",
    };
    let kind = match policy.kind {
        PolicyKind::Main => "",
        PolicyKind::Sub => " ptype sub",
    };
    let action = match policy.action {
        Action::Allow => "",
        Action::Block => " action block",
    };
    let Policy { selector, priority, mark, .. } = policy;
    let selector = of_selector(selector);
    format!(
        "policy {selector} dir {direction}{kind}{action} priority {}{}",
        priority.0,
        of_mark(*mark)
    )
}

fn of_selector(selector: &Selector) -> String {
    let mut text = format!("src {} dst {}", selector.source, selector.destination);
    if selector.protocol != 0 {
        text += &format!(" proto {}", selector.protocol);
    }
    for (word, port) in [("sport", selector.source_port), ("dport", selector.destination_port)] {
        text += &of_port(word, port);
    }
    text
}

fn of_port(word: &str, PortMask { value, mask }: PortMask) -> String {
    match mask {
        0 => String::new(),
        u16::MAX => format!(" {word} {value}"),
        mask => format!(" {word} {value}/{mask:#x}"),
    }
}
