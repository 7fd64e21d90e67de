//! Who is answered: root, the gateway's own user, and the members of a group.

use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::Uid,
};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_io::peer;

/// What a client may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything: root, and the gateway's own user.
    Full,
    /// All but the bytes of packets: a member of a group.
    Group {
        /// Who it is, or the owner of its number: members share what there is among them.
        user: u32,
    },
}

impl Access {
    /// Which member of the group it is, if one.
    pub(super) const fn member(self) -> Option<u32> {
        match self {
            Self::Full => None,
            Self::Group { user } => Some(user),
        }
    }
}

/// Users who may ask.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    own: u32,
    group: Option<u32>,
    subordinates: SubordinateUsers,
}

impl Readers {
    /// Root, who runs this process, and the members of `group`, of whom `subordinates` tells which
    /// are one.
    pub(super) fn new(group: Option<u32>, subordinates: SubordinateUsers) -> Self {
        Self { own: Uid::effective().as_raw(), group, subordinates }
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
        Ok(is_member.then(|| Access::Group { user: self.subordinates.owner_of(user) }))
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
            // Whoever has numbers of his own is one; the gateway's user asks by its own.
            (Some(7), 100_000, 7, vec![], members),
            (Some(7), 165_535, 8, vec![7], members),
            (Some(7), 165_536, 7, vec![], Some(Access::Group { user: 990 })),
            (None, 100_000, 7, vec![], None),
            (Some(7), 0, 7, vec![7], full),
        ] {
            let named = |_: &str| None;
            let subordinates = SubordinateUsers::parse("1000:100000:65536\n990:165536:1", named);
            let readers = Readers { own: 990, group, subordinates };
            let access = readers.access(user, own, || Ok(others.clone())).unwrap();
            assert_eq!(access, expected, "{group:?} {user} {own} {others:?}");
        }
    }

    #[test]
    fn own_user_is_admitted() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(
            Readers::new(None, SubordinateUsers::default()).admit(&near).unwrap(),
            Some(Access::Full)
        );
    }
}
