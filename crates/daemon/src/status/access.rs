//! Who is answered: root, the gateway's own user, and the members of a group.

use std::{io, os::unix::net::UnixStream};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::Uid,
};
use uxfrm_io::peer;

/// Users who may ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readers {
    own: u32,
    group: Option<u32>,
}

impl Readers {
    /// Root, who runs this process, and the members of `group`.
    pub(super) fn new(group: Option<u32>) -> Self {
        Self { own: Uid::effective().as_raw(), group }
    }

    /// Whether the client at the other end may ask.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn admit(&self, client: &UnixStream) -> io::Result<bool> {
        let peer = getsockopt(client, PeerCredentials)?;
        if self.are(peer.uid(), peer.gid()) {
            return Ok(true);
        }
        let Some(group) = self.group else { return Ok(false) };
        use std::os::fd::AsFd as _;
        Ok(peer::groups(client.as_fd())?.contains(&group))
    }

    fn are(&self, user: u32, group: u32) -> bool {
        user == 0 || user == self.own || self.group == Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_by_table() {
        let with = |group| Readers { own: 990, group };
        for (group, user, peers, expected) in [
            (None, 0, 5, true),
            (None, 990, 5, true),
            (None, 1000, 0, false),
            (None, 1000, 990, false),
            (Some(7), 1000, 7, true),
            (Some(7), 1000, 8, false),
            (Some(7), 0, 8, true),
        ] {
            assert_eq!(with(group).are(user, peers), expected, "{group:?} {user} {peers}");
        }
    }

    #[test]
    fn own_user_is_admitted() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert!(Readers::new(None).admit(&near).unwrap());
    }
}
