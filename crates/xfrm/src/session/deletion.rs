//! `deleteall`: rounds of listing and deleting until nothing that is meant is left.

use uxfrm_netlink::{AttributeType, client::NetlinkRequest};

use crate::{
    answer::AnswerMessage,
    client::{Connection, Error, OnRefusal, Pipeline},
    grammar::{PolicyFilter, StateFilter, XfrmCommand},
    request::{self, delete_policy, delete_state},
    text::SOCKET,
};

/// Protocols of states that the kernel's tunnels make and own.
const OWNED: [u8; 2] = [4, 41];

/// Deletes the states that are meant.
pub(super) fn states(connection: &mut Connection, filter: &StateFilter) -> Result<(), Error> {
    rounds(connection, &XfrmCommand::StateDeleteAll(*filter), |answer| {
        let AnswerMessage::State(state) = answer else { return None };
        let is_meant = filter.means(&state.info) && !OWNED.contains(&state.info.id.protocol);
        is_meant.then(|| delete_state(&state.info, state.found.value(AttributeType::Mark)))
    })
}

/// Deletes the policies that are meant, but for those of sockets.
pub(super) fn policies(connection: &mut Connection, filter: &PolicyFilter) -> Result<(), Error> {
    rounds(connection, &XfrmCommand::PolicyDeleteAll(*filter), |answer| {
        let AnswerMessage::Policy(policy) = answer else { return None };
        let is_meant = filter.means(&policy.info, policy.kind()) && policy.info.direction < SOCKET;
        is_meant.then(|| delete_policy(&policy.info, &policy.found))
    })
}

/// Ends when a round finds nothing, or can delete nothing: then the first refusal is reported.
fn rounds(
    connection: &mut Connection,
    list: &XfrmCommand,
    mut deletion: impl FnMut(&AnswerMessage<'_>) -> Option<NetlinkRequest>,
) -> Result<(), Error> {
    loop {
        // No name in it is one of a device, so there is a request.
        let Ok((request, wanted)) = request::request(list) else { return Ok(()) };
        let mut found = Vec::new();
        connection
            .talk(request, wanted, |message| found.extend(deletion(&AnswerMessage::of(message))))?;
        let count = found.len();
        let mut pipeline = Pipeline::new(connection, OnRefusal::Continue);
        for request in found {
            pipeline.push(connection, request, ())?;
        }
        pipeline.drain(connection)?;
        let refusals: Vec<_> = pipeline.refusals().collect();
        if refusals.len() == count {
            return match refusals.into_iter().next() {
                Some(((), refusal)) => Err(Error::Refused(refusal)),
                None => Ok(()),
            };
        }
    }
}
