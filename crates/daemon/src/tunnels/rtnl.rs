//! rtnetlink: tunnels as links (`net/core/rtnetlink.c: rtnl_newlink`, `rtnl_dellink`,
//! `rtnl_getlink`). Other interfaces are the kernel's.

use uxfrm_io::Rtnetlink;
use uxfrm_link::{
    TunnelLink,
    wire::{DELETE, GET, KernelLink, LinkRequest, NEW},
};
use uxfrm_netlink::{AnswerWriter, NetlinkError, NetlinkFlags, NetlinkMessage, RequestOutcome};

use super::{EEXIST, ENODEV, EOPNOTSUPP, TunnelService, counters, error};

const EINVAL: i32 = 22;
/// `NLM_F_EXCL`, `NLM_F_CREATE`
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

/// Carries out a request.
pub(super) fn act(
    carrying: &mut TunnelService,
    message: &NetlinkMessage<'_>,
    answers: &mut AnswerWriter,
) -> Result<RequestOutcome, NetlinkError> {
    let kind = message.header.kind;
    if ![NEW, DELETE, GET].contains(&kind) {
        return Err(NetlinkError::bare(EOPNOTSUPP));
    }
    let request = LinkRequest::decode(message.body())?;
    match kind {
        NEW => make(carrying, request, message.flags().bits())?,
        DELETE => {
            let name = name_of(carrying, &request)?;
            carrying.delete_link(&name)?;
        }
        _get if message.flags().intersects(NetlinkFlags::DUMP) => {
            let names: Vec<String> =
                carrying.interfaces.iter().map(|opened| opened.name.clone()).collect();
            // One that goes while the others are told of is left out.
            let bodies = names.iter().filter_map(|name| body(carrying, name).ok());
            return Ok(answers.dump(message, NEW, bodies));
        }
        _get => {
            let name = name_of(carrying, &request)?;
            answers.content(message, NEW, &body(carrying, &name)?);
        }
    }
    Ok(RequestOutcome::Done)
}

fn make(
    carrying: &mut TunnelService,
    request: LinkRequest,
    flags: u16,
) -> Result<(), NetlinkError> {
    let named = name_of(carrying, &request);
    let config = request.config.ok_or(NetlinkError::bare(EOPNOTSUPP))?;
    let link = |name| TunnelLink { name, mtu: request.mtu, admin: request.admin, config };
    match named {
        Ok(_) if flags & EXCLUSIVE != 0 => Err(NetlinkError::bare(EEXIST)),
        Ok(name) => carrying.change_link(&link(name)),
        Err(_) if flags & CREATE != 0 => {
            let name = request.name.filter(|name| uxfrm_link::is_name(name));
            carrying.add_link(&link(name.ok_or(NetlinkError::bare(EINVAL))?))
        }
        Err(refusal) => Err(refusal),
    }
}

/// The tunnel that a request is about.
fn name_of(carrying: &TunnelService, request: &LinkRequest) -> Result<String, NetlinkError> {
    let is_meant = |name: &str, index: u32| match &request.name {
        Some(wanted) if request.index == 0 => wanted == name,
        Some(_) | None => request.index == index,
    };
    let found = carrying.interfaces.iter().find(|opened| is_meant(&opened.name, opened.index));
    if let Some(opened) = found {
        return Ok(opened.name.clone());
    }
    let others = request
        .name
        .as_ref()
        .filter(|name| Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.link(name)).is_ok());
    Err(match others {
        Some(_) => NetlinkError::new(EOPNOTSUPP, "This interface is no tunnel of uxfrm"),
        None => NetlinkError::bare(ENODEV),
    })
}

/// What is told of a tunnel.
fn body(carrying: &TunnelService, name: &str) -> Result<Vec<u8>, NetlinkError> {
    let index = carrying.index_of(name)?;
    let tunnel = carrying.tunnels.named(name).ok_or(NetlinkError::bare(ENODEV))?;
    let mut rtnetlink = Rtnetlink::open().map_err(error::of_rtnetlink)?;
    let device = KernelLink(rtnetlink.link_body(index).map_err(error::of_rtnetlink)?);
    Ok(device.with(tunnel.config(), &counters::of_link(carrying, name)))
}
