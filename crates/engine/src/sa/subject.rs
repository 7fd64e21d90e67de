//! What stays known of an SA once it is gone: by whose traffic packets were dropped.

use std::net::IpAddr;

use super::Sa;
use crate::{DeviceId, Reqid, SaId};

/// An SA as drop records and drop counts name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaSubject {
    /// Destination, SPI and protocol.
    pub id: SaId,
    /// Its source; unspecified for any.
    pub source: IpAddr,
    /// Its request id, which its successor has too.
    pub reqid: Reqid,
    /// The device that it is offloaded to.
    pub device: Option<DeviceId>,
}

impl From<&Sa> for SaSubject {
    fn from(sa: &Sa) -> Self {
        Self {
            id: sa.id(),
            source: sa.source(),
            reqid: sa.reqid(),
            device: sa.attachment().map(|attachment| attachment.device),
        }
    }
}
