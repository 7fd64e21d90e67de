//! Devices: what `uxfrm dev` says and hears, and the profiles that it hands over.

use uxfrm_engine::{DeviceId, Direction, Moment, Offload, OffloadKind, SaConfig};
use uxfrm_offload::dev::{
    self, Answer, Command, DeviceReport, ProfileChoice, Setting, StateReport,
};
use uxfrm_offload::{Device as _, Fault, FunctionId, Link, ModelNic, NicSetup, Profile, Trust};
use uxfrm_packet::Pool;
use uxfrm_testkit::{Way, Wrapping};

/// Bytes as lines, each a command as the gateway gets it, or its words as a user says them.
pub(super) fn commands(bytes: &[u8]) {
    let mut nic = nic(Profile::by_name("niantic").expect("it is shipped"));
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let command = match serde_json::from_slice::<Command>(line) {
            Ok(command) => Some(command),
            Err(_) => str::from_utf8(line).ok().and_then(spoken),
        };
        command.into_iter().for_each(|command| carry_out(command, &mut nic));
    }
    report(&nic);
}

/// What words mean, which the gateway hears as it was meant.
fn spoken(line: &str) -> Option<Command> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = dev::command(&words).ok()?;
    let written = serde_json::to_vec(&command).expect("a command is JSON");
    assert_eq!(serde_json::from_slice::<Command>(&written).ok().as_ref(), Some(&command));
    Some(command)
}

fn carry_out(command: Command, nic: &mut ModelNic) {
    match command {
        Command::Add(addition) => match addition.profile {
            ProfileChoice::Named(name) => drop(Profile::by_name(&name)),
            ProfileChoice::Text(text) => profile(text.as_bytes()),
        },
        Command::Set { settings, .. } => settings.into_iter().for_each(|setting| match setting {
            Setting::Link(word) => nic.set_link(Link::from(word), &mut Pool::new()),
            Setting::Trust { vf, trusted } => {
                let trust = if trusted { Trust::Trusted } else { Trust::Untrusted };
                nic.set_trust(FunctionId::of_virtual(vf), trust);
            }
            Setting::Fault(words) => {
                if let Ok(fault) = words.parse::<Fault>() {
                    nic.inject(fault);
                }
            }
        }),
        Command::Flow { rule, .. } => {
            if let Ok(rule) = rule.parse() {
                let _ = nic.change_rule(rule);
            }
        }
        Command::Delete(_) | Command::Show { .. } | Command::Events(_) => {}
    }
}

/// Bytes as an answer, which is printed.
pub(super) fn answers(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Answer>(bytes) else { return };
    match &answer {
        Answer::Device(report) => drop(report.to_string()),
        Answer::States(states) => states.iter().for_each(|state| drop(state.to_string())),
        Answer::Event(event) => drop(event.to_string()),
        Answer::Text(_) | Answer::Rule(_) | Answer::Done | Answer::Refused { .. } => {}
    }
    let written = serde_json::to_vec(&answer).expect("it was read");
    assert_eq!(serde_json::from_slice::<Answer>(&written).ok(), Some(answer));
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
    let wrapping = Wrapping::tunnel4();
    let mut spi = 0x1000;
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        for direction in [Direction::In, Direction::Out] {
            spi += 1;
            let offload = Some(Offload { device: "fuzz0".to_owned(), direction, kind });
            let state = SaConfig { offload, ..wrapping.sa(Way::Right, spi) };
            let mut function = nic.function(FunctionId::PHYSICAL).expect("the device itself");
            if let Err(refusal) = function.add_state(&state, Moment::from_secs(1)) {
                let _ = refusal.to_string();
            }
        }
    }
    let mut function = nic.function(FunctionId::PHYSICAL).expect("the device itself");
    let _ = function.add_policy(&wrapping.policy(Direction::Out, Way::Right));
    report(nic);
}

fn report(nic: &ModelNic) {
    let mut report = DeviceReport::of(nic, "fuzz0", None, &[]);
    report.states = nic.held().map(StateReport::from).collect();
    assert_eq!(report.states.len(), nic.states().0 + nic.states().1);
    let written = serde_json::to_vec(&Answer::Device(Box::new(report))).expect("an answer is JSON");
    answers(&written);
    let _ = nic.debug_text();
}
