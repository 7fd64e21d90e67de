//! Generic netlink: the family `fou`, and the controller's word about it (`net/ipv4/fou_nl.c`,
//! `net/ipv4/fou_core.c`).

use uxfrm_link::wire::{port_attributes, port_request};
use uxfrm_netlink::{
    Answers, Flags, Message, Refusal, Settled,
    fou::{CONTROL, Command, FAMILY_ID, PortAttributes, Question},
};
use uxfrm_tunnel::{Port, PortIdentity};

use super::{TunnelService, counters, error};

const ENOENT: i32 = 2;

/// Carries out a request.
pub(super) fn act(
    carrying: &mut TunnelService,
    message: &Message<'_>,
    answers: &mut Answers,
) -> Result<Settled, Refusal> {
    match message.header.kind {
        CONTROL => {
            let question = Question::decode(message.body())?;
            answers.content(message, CONTROL, &question.answer());
            Ok(Settled::Done)
        }
        FAMILY_ID => {
            let (command, attributes) = PortAttributes::decode(message.body())?;
            carry_out(carrying, command, &attributes, message, answers)
        }
        _ => Err(Refusal::bare(ENOENT)),
    }
}

fn carry_out(
    carrying: &mut TunnelService,
    command: Command,
    attributes: &PortAttributes,
    message: &Message<'_>,
    answers: &mut Answers,
) -> Result<Settled, Refusal> {
    let request = port_request(attributes);
    let counted = attributes.statistics.is_some();
    let body = |port: &Port| {
        let mut shown = port_attributes(&port.request());
        shown.statistics = counted.then(|| counters::of_port(carrying, &port.identity));
        let mut body = Vec::new();
        shown.encode(Command::Get, &mut body);
        body
    };
    match command {
        Command::Add => carrying.add_port(&request)?,
        Command::Delete => carrying.delete_port(&request)?,
        Command::Get if message.flags().intersects(Flags::DUMP) => {
            return Ok(answers.dump(message, FAMILY_ID, carrying.ports.iter().map(body)));
        }
        Command::Get => {
            let identity = PortIdentity::of(&request).map_err(error::of_tunnel)?;
            let port = carrying.ports.find(&identity).map_err(error::of_tunnel)?;
            answers.content(message, FAMILY_ID, &body(port));
        }
    }
    Ok(Settled::Done)
}
