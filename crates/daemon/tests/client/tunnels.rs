//! Requests for receive ports and tunnels, and their answers, as `ip fou` and `ip link` print them.

use uxfrm_link::wire::{
    KernelLink, LinkRequest, LinkStatistics, TunnelInfo, port_attributes, port_request,
};
use uxfrm_link::{json, text};
use uxfrm_netlink::fou::{CONTROL, FAMILY_ID, FamilyQuery, FouCommand, PortAttributes};
use uxfrm_netlink::{
    AnswerWriter, ClientId, NetlinkError, NetlinkFlags, NetlinkMessage, NetlinkMessages,
    RawAttributes, RequestOutcome, SocketOptions,
};
use uxfrm_tunnel::{DecapPort, DecapPorts, PortIdentity, Tunnel, Tunnels};

const CLIENT: ClientId = ClientId { connection: 1, port: 4711 };

/// Bytes as one datagram of a client of generic netlink. Every request that asks for it is
/// answered, with whole messages.
pub(super) fn ports(bytes: &[u8]) {
    let mut ports = DecapPorts::default();
    let asked = NetlinkMessages::of(bytes).filter(|message| message.header.flags & 5 == 5).count();
    let answers = AnswerWriter::to(bytes, CLIENT, SocketOptions::EXT_ACK, |message, answers| {
        let kind = message.header.kind;
        answer(kind, &mut ports, message, answers)
    });
    let mut answered = 0;
    for datagram in answers {
        let messages: Vec<_> = NetlinkMessages::of(datagram.bytes()).collect();
        let whole = messages.iter().map(|message| message.bytes.len().next_multiple_of(4));
        assert_eq!(whole.sum::<usize>(), datagram.len(), "half a message");
        messages.iter().for_each(|message| read_answer(message.body()));
        answered += messages.len();
    }
    assert!(answered >= asked, "{answered} answers to {asked} requests");
}

/// What `uxfrm`'s own client makes of an answer.
fn read_answer(body: &[u8]) {
    let _ = FamilyQuery::answered(body);
    if let Ok((_, port)) = PortAttributes::decode(body) {
        show(&port);
    }
}

fn answer(
    kind: u16,
    ports: &mut DecapPorts,
    message: &NetlinkMessage<'_>,
    answers: &mut AnswerWriter,
) -> Result<RequestOutcome, NetlinkError> {
    let refused = |_| NetlinkError::bare(22);
    if kind == CONTROL {
        let question = FamilyQuery::decode(message.body())?;
        assert_eq!(FamilyQuery::answered(&question.answer()), Some(FAMILY_ID));
        answers.content(message, CONTROL, &question.answer());
        return Ok(RequestOutcome::Done);
    }
    let (command, attributes) = PortAttributes::decode(message.body())?;
    show(&attributes);
    let request = port_request(&attributes);
    match command {
        FouCommand::Add => ports.add(DecapPort::of(&request).map_err(refused)?).map_err(refused)?,
        FouCommand::Delete => {
            ports.delete(&PortIdentity::of(&request).map_err(refused)?).map_err(refused)?;
        }
        FouCommand::Get if message.flags().intersects(NetlinkFlags::DUMP) => {
            return Ok(answers.dump(message, FAMILY_ID, ports.iter().map(body)));
        }
        FouCommand::Get => {
            let identity = PortIdentity::of(&request).map_err(refused)?;
            answers.content(message, FAMILY_ID, &body(ports.find(&identity).map_err(refused)?));
        }
    }
    Ok(RequestOutcome::Done)
}

fn body(port: &DecapPort) -> Vec<u8> {
    let mut body = Vec::new();
    port_attributes(&port.request()).encode(FouCommand::Get, &mut body);
    let (_, read) = PortAttributes::decode(&body).expect("we wrote it");
    assert_eq!(DecapPort::of(&port_request(&read)).as_ref(), Ok(port));
    body
}

fn show(port: &PortAttributes) {
    for counted in [text::ShowCounters::No, text::ShowCounters::Yes] {
        let _ = text::port(port, counted, |index| format!("if{index}"));
        drop(json::port(port, counted, |index| format!("if{index}")));
    }
}

/// Bytes as a request about a link behind its length in two bytes, and as what the kernel says of a
/// device. What of it is a tunnel is told as it was asked for.
pub(super) fn link(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first_chunk() else { return };
    let (request, device) = bytes.split_at(bytes.len().min(u16::from_le_bytes(*length).into()));
    show_link(device);
    let Ok(LinkRequest { config: Some(config), .. }) = LinkRequest::decode(request) else { return };
    let Ok(tunnel) = Tunnel::new("fuzz", config.clone()) else { return };
    let mut tunnels = Tunnels::default();
    tunnels.add(tunnel).expect("the first one");
    let again = Tunnel::new("fuzz", config).expect("as before");
    let tunnel = tunnels.change(again).expect("of the same kind");
    let told = KernelLink(device.to_vec()).with(tunnel.config(), &LinkStatistics::default());
    // What the kernel did not say in time has no name.
    if let Some(shown) = show_link(&told) {
        assert_eq!(&shown.config, tunnel.config());
    }
}

fn show_link(body: &[u8]) -> Option<TunnelInfo> {
    RawAttributes::of(body).for_each(drop);
    let shown = TunnelInfo::decode(body)?;
    for counted in [text::ShowCounters::No, text::ShowCounters::Yes] {
        let _ = text::link(&shown, counted);
        drop(json::link(&shown, counted));
    }
    Some(shown)
}
