//! Who is answered: root, the gateway's own user, and the members of a group.

use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::Uid,
};
use uxfrm_io::peer;

/// What a client may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything: root, and the gateway's own user.
    Full,
    /// All but the bytes of packets: a member of a group.
    Group {
        /// Who it is: members share what there is among them.
        user: u32,
    },
}

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

    /// What the client at the other end may be told; `None` for nothing.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn admit(&self, client: &UnixStream) -> io::Result<Option<Access>> {
        let peer = getsockopt(client, PeerCredentials)?;
        let others = || peer::groups(client.as_fd());
        self.access(peer.uid(), peer.gid(), others)
    }

    fn access(
        &self,
        user: u32,
        group: u32,
        others: impl FnOnce() -> io::Result<Vec<u32>>,
    ) -> io::Result<Option<Access>> {
        if user == 0 || user == self.own {
            return Ok(Some(Access::Full));
        }
        let Some(wanted) = self.group else { return Ok(None) };
        let is_member = group == wanted || others()?.contains(&wanted);
        Ok(is_member.then_some(Access::Group { user }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_by_table() {
        let (full, members) = (Some(Access::Full), Some(Access::Group { user: 1000 }));
        for (group, user, own, others, expected) in [
            (None, 0, 5, vec![], full),
            (None, 990, 5, vec![], full),
            (None, 1000, 0, vec![0, 990], None),
            (Some(7), 1000, 7, vec![], members),
            (Some(7), 1000, 8, vec![4, 7], members),
            (Some(7), 1000, 8, vec![4], None),
            (Some(7), 0, 7, vec![7], full),
        ] {
            let readers = Readers { own: 990, group };
            let access = readers.access(user, own, || Ok(others.clone())).unwrap();
            assert_eq!(access, expected, "{group:?} {user} {own} {others:?}");
        }
    }

    #[test]
    fn own_user_is_admitted() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(Readers::new(None).admit(&near).unwrap(), Some(Access::Full));
    }
}
