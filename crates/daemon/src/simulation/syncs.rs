//! Texts of `uxfrm xfrm sync`: what a gateway has, with other words here and there.

use uxfrm_control_client::reload::{ReloadAnswer, SyncOthers};
use uxfrm_engine::{PolicyIndex, SaConfig};
use uxfrm_testkit::Rng;
use uxfrm_xfrm::{grammar::LineWriter, names::Names, text::Keys};

use super::{
    site::{End, Run},
    world::World,
};

/// One in so many steps is followed by a text.
const SELDOM: usize = 40;
/// Packets in windows that a text makes wider.
const WIDE: u32 = 128;

impl World {
    /// Now and then a program makes a gateway what a text says. Its dice are its own, so that all
    /// else happens as without it.
    pub(super) fn perhaps_sync(&mut self) {
        if self.syncs.below(SELDOM) > 0 {
            return;
        }
        let site = self.syncs.below(self.sites.len());
        // A device may refuse what it had before.
        if self.sites[site].offload.is_none() {
            self.sync(site);
        }
    }

    fn sync(&mut self, site: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        let text = varied(run, &mut self.syncs);
        let others = [SyncOthers::Keep, SyncOthers::Remove][self.syncs.below(2)];
        if text.is_empty() {
            return;
        }
        run.begin_sync(&text, others);
        if self.syncs.below(5) == 0 && !self.is_calm {
            self.note(|| format!("{site} ends while it reads a text"));
            return self.end(site, End::Killed);
        }
        let (news, last) = loop {
            let (news, last) = run.read_on();
            if let Some(last) = last {
                break (news, last);
            }
        };
        self.note(|| format!("{site} has read a text of {} bytes: {last:?}", text.len()));
        // Disk and kernel may refuse: nothing has changed then, which the audit sees.
        self.hear(site, news);
        self.audit(site);
        self.release(site);
    }
}

/// What `uxfrm xfrm save` prints, with other limits and wider windows of some states.
fn varied(run: &Run, rng: &mut Rng) -> String {
    let (names, now) = (Names::none(), run.database.current());
    let mut writer = LineWriter::new(&names, Keys::Shown);
    let mut text = String::new();
    let mut states: Vec<_> = now.sad.iter().collect();
    states.sort_unstable_by_key(|sa| sa.insertion_seq());
    for sa in states {
        text += writer.state(&variation(sa.to_config(), rng)).unwrap();
    }
    let mut policies: Vec<_> = now.spd.iter().filter(|entry| !entry.is_held()).collect();
    policies.sort_unstable_by_key(|entry| entry.precedence().insertion_seq());
    for entry in policies {
        let mut policy = entry.policy();
        policy.index = PolicyIndex(0);
        text += writer.policy(&policy).unwrap();
    }
    text
}

fn variation(mut state: SaConfig, rng: &mut Rng) -> SaConfig {
    match rng.below(6) {
        0 => state.limits.bytes.hard = u64::MAX - 1 - rng.below(3) as u64,
        1 if state.replay.window > 0 => state.replay.window = state.replay.window.max(WIDE),
        _ => {}
    }
    state
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use uxfrm_netlink::{NetlinkMessages, client::ReplyStatus};

    use super::*;
    use crate::{
        protocol::Outbox,
        simulation::{
            client::{self, Clients, Purpose, SCRIPT},
            machine,
            site::Site,
        },
    };

    fn line(spi: u32, rest: &str) -> String {
        let to = (std::net::Ipv4Addr::new(192, 0, 2, 2).into(), spi);
        client::state("add", std::net::Ipv4Addr::new(192, 0, 2, 1).into(), to, &[7; 20], rest)
    }

    fn started(scratch: &TempDir) -> Site {
        machine::begin(1);
        let batch = scratch.path().join("batch");
        std::fs::write(&batch, "").unwrap();
        let mut site = Site::new(0, batch, 1, None);
        site.start().unwrap();
        site.run.as_mut().unwrap().join(SCRIPT, 0);
        site
    }

    /// Whether a request of another client is done.
    fn asks(run: &mut Run, clients: &mut Clients, spi: u32) -> bool {
        clients.ask(SCRIPT, &line(spi, "reqid 1"), Purpose::Flush);
        let taken = clients.take(usize::MAX).into_iter();
        let requests: Vec<_> = taken.map(|(from, _, bytes)| (from, bytes)).collect();
        let answers = run.round(&requests, &mut Outbox::default());
        let mut messages = answers.iter().flat_map(|(_, datagram)| NetlinkMessages::of(datagram));
        messages.any(|message| matches!(ReplyStatus::of(&message), ReplyStatus::Done { .. }))
    }

    #[test]
    fn requests_of_others_are_answered_between_the_parts_of_a_long_text() {
        let scratch = TempDir::new().unwrap();
        let mut site = started(&scratch);
        let run = site.run.as_mut().unwrap();
        let text: String = (0..5000).map(|spi| line(0x10000 + spi, "reqid 2") + "\n").collect();
        run.begin_sync(&text, SyncOthers::Keep);
        let (mut clients, mut others) = (Clients::default(), 0);
        let last = loop {
            assert_eq!(run.database.current().sad.len(), others, "nothing of the text is there");
            assert!(asks(run, &mut clients, 0x1000 + u32::try_from(others).unwrap()));
            others += 1;
            if let (_, Some(last)) = run.read_on() {
                break last;
            }
        };
        assert_eq!(last, ReloadAnswer::Done);
        assert!(others > text.len() / (128 * 1024), "{others} turns of others");
        assert_eq!(run.database.current().sad.len(), 5000 + others);
    }

    #[test]
    fn text_of_a_client_that_leaves_is_not_carried_out() {
        let scratch = TempDir::new().unwrap();
        let mut site = started(&scratch);
        let run = site.run.as_mut().unwrap();
        let text: String = (0..2000).map(|spi| line(0x10000 + spi, "reqid 2") + "\n").collect();
        run.begin_sync(&text, SyncOthers::Keep);
        assert_eq!(run.read_on(), (Vec::new(), None));
        run.leave_sync();
        for _ in 0..100 {
            assert_eq!(run.read_on(), (Vec::new(), None));
        }
        assert_eq!(run.database.current().sad.len(), 0);
        run.begin_sync(&(line(0x1000, "reqid 2") + "\n"), SyncOthers::Keep);
        assert_eq!(run.read_on().1, Some(ReloadAnswer::Done), "another may come");
    }
}
