//! Answers to the commands of `uxfrm dev`.

use uxfrm_engine::{Database, Event};
use uxfrm_offload::{
    Fault, FunctionId, LinkState, RuleError, Trust,
    dev::{Addition, DevAnswer, DevCommand, DeviceReport, Setting, ShowDetail, StateReport},
};
use uxfrm_packet::Pool;

use super::{DeviceCreation, Devices, InstalledDevice, lock, names};
use crate::{
    config::message_of_tun_name,
    protocol::{ClientId, DumpProgress, Outbox},
};

const ENODEV: i32 = 19;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// States in one datagram.
const STATES: usize = 128;
/// Letters in one datagram.
const LETTERS: usize = 32 * 1024;
/// Datagrams at a time; the rest when the client has read them.
const AT_ONCE: usize = 4;

/// Why something is not done.
struct DeviceRefusal {
    errno: i32,
    text: String,
}

type Done<T> = Result<T, DeviceRefusal>;

/// The bytes of an answer.
pub(super) fn datagram(answer: &DevAnswer) -> Vec<u8> {
    // Answers have no maps whose keys are no text, the only thing that JSON can't have.
    serde_json::to_vec(answer).unwrap_or_default()
}

impl Devices {
    /// Carries out what a client asks. What key managers are to hear of it is added to `events`.
    pub(crate) fn answer(
        &mut self,
        client: ClientId,
        request: &[u8],
        database: &mut Database,
        events: &mut Vec<Event>,
        outbox: &mut Outbox,
    ) {
        let answers = match serde_json::from_slice(request) {
            Err(error) => Err(refused(EINVAL, &format!("that is no command: {error}"))),
            Ok(command) => self.carry_out(client, command, database, events),
        };
        let answers = answers.unwrap_or_else(|DeviceRefusal { errno, text }| {
            vec![DevAnswer::Refused { errno, text }]
        });
        self.queued.entry(client).or_default().extend(answers);
        self.carry_on(client, outbox);
    }

    /// Sends more of what a client is still to be sent.
    pub(crate) fn carry_on(&mut self, client: ClientId, outbox: &mut Outbox) -> DumpProgress {
        let Some(queue) = self.queued.get_mut(&client) else { return DumpProgress::Done };
        for answer in queue.drain(..queue.len().min(AT_ONCE)) {
            outbox.send(client, datagram(&answer));
        }
        if queue.is_empty() {
            self.queued.remove(&client);
            return DumpProgress::Done;
        }
        DumpProgress::More
    }

    /// A client is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.listeners.retain(|(listener, _)| *listener != client);
        self.queued.remove(&client);
    }

    fn carry_out(
        &mut self,
        client: ClientId,
        command: DevCommand,
        database: &mut Database,
        events: &mut Vec<Event>,
    ) -> Done<Vec<DevAnswer>> {
        match command {
            DevCommand::Add(addition) => self.add(addition).map(|()| vec![DevAnswer::Done]),
            DevCommand::Delete(name) if self.remove(&name, database, events) => {
                Ok(vec![DevAnswer::Done])
            }
            DevCommand::Delete(name) => Err(absent(&name)),
            DevCommand::Show { device, part } => self.show(device.as_deref(), part),
            DevCommand::Set { device, settings } => {
                let installed = self.installed.get_mut(&device).ok_or_else(|| absent(&device))?;
                settings.iter().try_for_each(|setting| installed.check(setting))?;
                settings.iter().for_each(|setting| installed.set(setting));
                self.look();
                self.maintain(database, events);
                Ok(vec![DevAnswer::Done])
            }
            DevCommand::Flow { device, rule } => {
                let installed = self.installed.get(&device).ok_or_else(|| absent(&device))?;
                let place = rule.parse().and_then(|rule| lock(&installed.nic).change_rule(rule));
                let place = place.map_err(|error| of_rule(&error))?;
                Ok(vec![DevAnswer::Rule(place.0), DevAnswer::Done])
            }
            DevCommand::Events(device) => {
                if let Some(name) = &device
                    && !self.has(name)
                {
                    return Err(absent(name));
                }
                self.listeners.push((client, device));
                Ok(Vec::new())
            }
        }
    }

    fn add(&mut self, addition: Addition) -> Done<()> {
        let name = addition.name.clone();
        if self.has(&name) {
            return Err(refused(EEXIST, &format!("there is a device {name} already")));
        }
        self.spare_tun(&addition)?;
        let failed = |error: anyhow::Error| {
            let system = error.downcast_ref::<std::io::Error>();
            let errno = system.and_then(std::io::Error::raw_os_error).unwrap_or(EINVAL);
            refused(errno, &format!("{error:#}"))
        };
        self.install(addition, DeviceCreation::Real).map_err(failed)?;
        self.open_thread(&name).map_err(failed)?;
        self.resume().map_err(|error| failed(error.into()))
    }

    /// The gateway's TUN is no device, nor what one is over, as in the configuration.
    fn spare_tun(&self, addition: &Addition) -> Done<()> {
        let Addition { name, port, functions, .. } = addition;
        let own = self.running.as_ref().map(|around| around.tun.as_str());
        let mut made = names(name, *functions).chain(port.clone());
        match made.find(|name| Some(name.as_str()) == own) {
            Some(tun) => Err(refused(EEXIST, &message_of_tun_name(&tun))),
            None => Ok(()),
        }
    }

    fn show(&self, device: Option<&str>, part: ShowDetail) -> Done<Vec<DevAnswer>> {
        let mut answers = Vec::new();
        match device {
            Some(name) => {
                let installed = self.installed.get(name).ok_or_else(|| absent(name))?;
                installed.show(name, part, &mut answers);
            }
            None => self
                .installed
                .iter()
                .for_each(|(name, installed)| installed.show(name, part, &mut answers)),
        }
        answers.push(DevAnswer::Done);
        Ok(answers)
    }
}

impl InstalledDevice {
    fn show(&self, name: &str, part: ShowDetail, answers: &mut Vec<DevAnswer>) {
        let nic = lock(&self.nic);
        if part == ShowDetail::Debugfs {
            let text: Vec<char> = nic.debug_text().chars().collect();
            answers.extend(text.chunks(LETTERS).map(|some| DevAnswer::Text(some.iter().collect())));
            return;
        }
        let functions: Vec<_> =
            self.interfaces[1..].iter().map(|interface| interface.name.clone()).collect();
        let report = DeviceReport::of(&nic, name, self.port.as_deref(), &functions);
        answers.push(DevAnswer::Device(Box::new(report)));
        if part == ShowDetail::States {
            let states: Vec<_> = nic.held().map(StateReport::from).collect();
            answers.extend(states.chunks(STATES).map(|some| DevAnswer::States(some.to_vec())));
        }
    }

    /// Whether a setting can be, before anything is changed.
    fn check(&self, setting: &Setting) -> Done<()> {
        match setting {
            Setting::Link(_) => Ok(()),
            Setting::Trust { vf, .. } if usize::from(*vf) + 1 < self.interfaces.len() => Ok(()),
            Setting::Trust { vf, .. } => Err(refused(EINVAL, &format!("there is no vf {vf}"))),
            Setting::Fault(words) => match words.parse::<Fault>() {
                Ok(_) => Ok(()),
                Err(error) => Err(refused(EINVAL, &error.to_string())),
            },
        }
    }

    fn set(&mut self, setting: &Setting) {
        let mut nic = lock(&self.nic);
        match setting {
            Setting::Link(word) => {
                self.admin = LinkState::from(*word);
                // At once in any case: that the interface is up is looked after next.
                if self.admin == LinkState::Down {
                    nic.set_link(LinkState::Down, &mut Pool::new());
                }
            }
            Setting::Trust { vf, trusted } => {
                let trust = if *trusted { Trust::Trusted } else { Trust::Untrusted };
                nic.set_trust(FunctionId::of_virtual(*vf), trust);
            }
            Setting::Fault(words) => {
                if let Ok(fault) = words.parse() {
                    nic.inject(fault);
                }
            }
        }
    }
}

fn of_rule(error: &RuleError) -> DeviceRefusal {
    let errno = match error {
        RuleError::Beginning(_)
        | RuleError::Word { .. }
        | RuleError::FlowType(_)
        | RuleError::Value { .. }
        | RuleError::FlexOffset(_)
        | RuleError::NoQueue(..)
        | RuleError::OtherFlexOffset(_)
        | RuleError::NoPlace(..) => EINVAL,
        RuleError::NoFlexField | RuleError::NoFlowDirector => EOPNOTSUPP,
        RuleError::NoRule(_) => ENOENT,
        RuleError::Full(_) => ENOSPC,
    };
    refused(errno, &error.to_string())
}

fn absent(name: &str) -> DeviceRefusal {
    refused(ENODEV, &format!("there is no device {name}: uxfrm dev add {name}"))
}

fn refused(errno: i32, text: &str) -> DeviceRefusal {
    DeviceRefusal { errno, text: text.to_owned() }
}
