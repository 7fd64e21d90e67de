//! Devices: what `uxfrm dev` says and hears, and the profiles that it hands over.

use uxfrm_engine::{DeviceId, Direction, Moment, Offload, OffloadKind, SaConfig};
use uxfrm_offload::dev::{
    self, DevAnswer, DevCommand, DeviceReport, ProfileChoice, Setting, StateReport,
};
use uxfrm_offload::{
    Device as _, Fault, FunctionId, LinkState, ModelNic, NicSetup, Profile, Trust,
};
use uxfrm_packet::Pool;
use uxfrm_testkit::{IpsecSetup, PairDirection};

/// Bytes as lines, each a command as the gateway gets it, or its words as a user says them.
pub(super) fn commands(bytes: &[u8]) {
    let mut nic = nic(Profile::by_name("niantic").expect("it is shipped"));
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let command = match serde_json::from_slice::<DevCommand>(line) {
            Ok(command) => Some(command),
            Err(_) => str::from_utf8(line).ok().and_then(spoken),
        };
        command.into_iter().for_each(|command| carry_out(command, &mut nic));
    }
    report(&nic);
}

/// What words mean, which the gateway hears as it was meant.
fn spoken(line: &str) -> Option<DevCommand> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = dev::command(&words).ok()?;
    let written = serde_json::to_vec(&command).expect("a command is JSON");
    assert_eq!(serde_json::from_slice::<DevCommand>(&written).ok().as_ref(), Some(&command));
    Some(command)
}

fn carry_out(command: DevCommand, nic: &mut ModelNic) {
    match command {
        DevCommand::Add(addition) => match addition.profile {
            ProfileChoice::Named(name) => drop(Profile::by_name(&name)),
            ProfileChoice::Text(text) => profile(text.as_bytes()),
        },
        DevCommand::Set { settings, .. } => {
            settings.into_iter().for_each(|setting| match setting {
                Setting::Link(word) => nic.set_link(LinkState::from(word), &mut Pool::new()),
                Setting::Trust { vf, trusted } => {
                    let trust = if trusted { Trust::Trusted } else { Trust::Untrusted };
                    nic.set_trust(FunctionId::of_virtual(vf), trust);
                }
                Setting::Fault(words) => {
                    if let Ok(fault) = words.parse::<Fault>() {
                        nic.inject(fault);
                    }
                }
            })
        }
        DevCommand::Flow { rule, .. } => {
            if let Ok(rule) = rule.parse() {
                let _ = nic.change_rule(rule);
            }
        }
        DevCommand::Delete(_) | DevCommand::Show { .. } | DevCommand::Events(_) => {}
    }
}

/// Bytes as an answer, which is printed.
pub(super) fn answers(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<DevAnswer>(bytes) else { return };
    match &answer {
        DevAnswer::Device(report) => drop(report.to_string()),
        DevAnswer::States(states) => states.iter().for_each(|state| drop(state.to_string())),
        DevAnswer::Event(event) => drop(event.to_string()),
        DevAnswer::Text(_) | DevAnswer::Rule(_) | DevAnswer::Done | DevAnswer::Refused { .. } => {}
    }
    let written = serde_json::to_vec(&answer).expect("it was read");
    assert_eq!(serde_json::from_slice::<DevAnswer>(&written).ok(), Some(answer));
}

/// Bytes as a device's profile. What it lets in is in its report, and what it refuses has words.
pub(super) fn profile(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Profile::from_toml(text) {
        Ok(profile) => fill(&mut nic(profile)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn nic(profile: Profile) -> ModelNic {
    ModelNic::new(NicSetup::new(profile, DeviceId(7))).expect("memory")
}

fn fill(nic: &mut ModelNic) {
    let wrapping = IpsecSetup::tunnel4();
    let mut spi = 0x1000;
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        for direction in [Direction::In, Direction::Out] {
            spi += 1;
            let offload = Some(Offload { device: "fuzz0".to_owned(), direction, kind });
            let state = SaConfig { offload, ..wrapping.sa(PairDirection::LeftToRight, spi) };
            let mut function = nic.function(FunctionId::PHYSICAL).expect("the device itself");
            if let Err(refusal) = function.add_state(&state, Moment::from_secs(1)) {
                let _ = refusal.to_string();
            }
        }
    }
    let mut function = nic.function(FunctionId::PHYSICAL).expect("the device itself");
    let _ = function.add_policy(&wrapping.policy(Direction::Out, PairDirection::LeftToRight));
    report(nic);
}

fn report(nic: &ModelNic) {
    let mut report = DeviceReport::of(nic, "fuzz0", None, &[]);
    report.states = nic.held().map(StateReport::from).collect();
    assert_eq!(report.states.len(), nic.states().0 + nic.states().1);
    let written =
        serde_json::to_vec(&DevAnswer::Device(Box::new(report))).expect("an answer is JSON");
    answers(&written);
    let _ = nic.debug_text();
}
