//! Generic netlink: the family `fou`, and the controller's word about it (`net/ipv4/fou_nl.c`,
//! `net/ipv4/fou_core.c`).

use uxfrm_link::wire::{port_attributes, port_request};
use uxfrm_netlink::{
    AnswerWriter, NetlinkError, NetlinkFlags, NetlinkMessage, RequestOutcome,
    fou::{CONTROL, FAMILY_ID, FamilyQuery, FouCommand, PortAttributes},
};
use uxfrm_tunnel::{DecapPort, PortIdentity};

use super::{TunnelService, counters, error};

const ENOENT: i32 = 2;

/// Carries out a request.
pub(super) fn act(
    carrying: &mut TunnelService,
    message: &NetlinkMessage<'_>,
    answers: &mut AnswerWriter,
) -> Result<RequestOutcome, NetlinkError> {
    match message.header.kind {
        CONTROL => {
            let question = FamilyQuery::decode(message.body())?;
            answers.content(message, CONTROL, &question.answer());
            Ok(RequestOutcome::Done)
        }
        FAMILY_ID => {
            let (command, attributes) = PortAttributes::decode(message.body())?;
            carry_out(carrying, command, &attributes, message, answers)
        }
        _ => Err(NetlinkError::bare(ENOENT)),
    }
}

fn carry_out(
    carrying: &mut TunnelService,
    command: FouCommand,
    attributes: &PortAttributes,
    message: &NetlinkMessage<'_>,
    answers: &mut AnswerWriter,
) -> Result<RequestOutcome, NetlinkError> {
    let request = port_request(attributes);
    let counted = attributes.statistics.is_some();
    let body = |port: &DecapPort| {
        let mut shown = port_attributes(&port.request());
        shown.statistics = counted.then(|| counters::of_port(carrying, &port.identity));
        let mut body = Vec::new();
        shown.encode(FouCommand::Get, &mut body);
        body
    };
    match command {
        FouCommand::Add => carrying.add_port(&request)?,
        FouCommand::Delete => carrying.delete_port(&request)?,
        FouCommand::Get if message.flags().intersects(NetlinkFlags::DUMP) => {
            return Ok(answers.dump(message, FAMILY_ID, carrying.ports.iter().map(body)));
        }
        FouCommand::Get => {
            let identity = PortIdentity::of(&request).map_err(error::of_tunnel)?;
            let port = carrying.ports.find(&identity).map_err(error::of_tunnel)?;
            answers.content(message, FAMILY_ID, &body(port));
        }
    }
    Ok(RequestOutcome::Done)
}
