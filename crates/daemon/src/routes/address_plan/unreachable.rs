//! What is refused once the TUN is gone, whoever marks packets then or nobody: a crash takes
//! no care of the packet filter, and `nft flush ruleset` afterwards takes the marks away.
//!
//! The kernel turns to it by itself. Its rules ignore each route that their tables have
//! (`suppress_prefixlength`), so while there is a TUN they change nothing; its routes go with it,
//! and a refusal beneath them is no route that could be ignored.
//!
//! Sources with a table of their own are refused there. Here are sockets without an address, which
//! no source's rule is for, and what is forwarded from anywhere.

use std::net::IpAddr;

use super::{Lead, PolicyAddresses, holds, host, leads_of, meet};
use crate::routes::destinations::Destination;

/// Destinations to which all packets meet a policy that protects or blocks, and those among them to
/// which some do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreachableRoutes {
    /// From each of the host's own addresses.
    pub(crate) own: Vec<(Destination, Lead)>,
    /// From anywhere.
    pub(crate) everyone: Vec<(Destination, Lead)>,
}

impl UnreachableRoutes {
    /// That of what policies of one family say, for a host with these addresses.
    pub(super) fn add(&mut self, all: Destination, said: &[PolicyAddresses], own: &[IpAddr]) {
        let own = own.iter().filter(|own| !own.is_loopback() && meet(all, host(**own)));
        let own: Vec<_> = own.map(|own| host(*own)).collect();
        let from = |source| move |net| lead(source, net, said);
        self.everyone.extend(leads_of(said.iter(), from(all)));
        if !own.is_empty() {
            let from_each = |net| {
                // Mostly the same for all, which is asked once.
                let is_refused = from(all)(net) == Lead::Tun
                    || own.iter().all(|own| from(*own)(net) == Lead::Tun);
                if is_refused { Lead::Tun } else { Lead::On }
            };
            self.own.extend(leads_of(said.iter(), from_each));
        }
    }
}

/// As in the plan, but for policies that lead more than they are for.
fn lead(source: Destination, net: Destination, said: &[PolicyAddresses]) -> Lead {
    let counts = |said: &&PolicyAddresses| {
        let may_pass = said.lead == Lead::On && meet(said.source, source);
        let decides = said.lead == Lead::Tun && said.is_of_all && holds(said.source, source);
        holds(said.destination, net) && (may_pass || decides)
    };
    said.iter().find(counts).map_or(Lead::On, |said| said.lead)
}
