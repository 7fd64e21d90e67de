//! User numbers that a user has for user namespaces of his own (`subuid(5)`): they are his.
//!
//! `useradd` gives each user 65,536 of them, and `newuidmap` lets him run programs by each. Where
//! clients share what is scarce, they count as one.

use std::fs;

use nix::unistd::User;

/// Which numbers are whose.
#[derive(Clone, Debug, Default)]
pub struct SubordinateUsers {
    ranges: Vec<Range>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
    owner: u32,
}

impl SubordinateUsers {
    /// What `/etc/subuid` says now; nothing where it can't be read.
    #[must_use]
    pub fn read() -> Self {
        let named = |name: &str| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        Self::parse(&fs::read_to_string("/etc/subuid").unwrap_or_default(), named)
    }

    /// What a file of this text says, where `named` knows users' numbers by their names.
    #[must_use]
    pub fn parse(text: &str, named: impl Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &str| {
            let mut fields = line.trim().split(':');
            let name = fields.next()?;
            let first: u32 = fields.next()?.parse().ok()?;
            let count: u32 = fields.next()?.parse().ok()?;
            let last = first.checked_add(count.checked_sub(1)?)?;
            let owner = named(name).or_else(|| name.parse().ok())?;
            // Root's are those of containers, which are not root.
            let owner = if owner == 0 { first } else { owner };
            Some(Range { first, last, owner })
        };
        Self { ranges: text.lines().filter_map(range).collect() }
    }

    /// Whose a user number is: mostly its own.
    #[must_use]
    pub fn owner_of(&self, user: u32) -> u32 {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&user));
        range.map_or(user, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_users_are_their_owners() {
        let text = "ann:100000:65536\n1001:165536:2\nroot:300000:10\nnobody-knows:400000:5\n\
            bad:x:5\nshort:1\nnone:500000:0\nhuge:4294967295:2\n# a comment\n";
        let named = |name: &str| match name {
            "ann" => Some(1000),
            "root" => Some(0),
            _ => None,
        };
        let users = SubordinateUsers::parse(text, named);
        for (user, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_537, 1001),
            (165_538, 165_538),
            (300_005, 300_000),
            (400_001, 400_001),
            (500_000, 500_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(users.owner_of(user), owner, "{user}");
        }
    }
}
