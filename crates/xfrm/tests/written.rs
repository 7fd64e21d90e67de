//! Lines that are written are read as what they were written from.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use proptest::prelude::*;
use uxfrm_engine::{
    Direction, IfId, Mark, Offload, OffloadKind, Policy, Prefix, SaConfig, Selector,
};
use uxfrm_netlink::{
    NetlinkMessage, NetlinkMessages,
    client::{DumpedState, NetlinkRequest, dumped_policy},
};
use uxfrm_testkit::{Rng, arbitrary};
use uxfrm_xfrm::{
    grammar::{self, LinePrefix, LineWriter, XfrmCommand},
    names::Names,
    request::request,
    text::Keys,
};

fn line<'n>(names: &'n Names, keys: Keys) -> LineWriter<'n> {
    LineWriter::new(names, keys)
}

/// The request that a line leads to, as a script's and as one of `uxfrm xfrm -batch`.
fn requested(text: &str) -> NetlinkRequest {
    assert!(
        text.starts_with("xfrm ") && text.ends_with('\n') && text.lines().count() == 1,
        "{text}"
    );
    let both = [LinePrefix::Program, LinePrefix::Optional].map(|prefix| {
        let mut commands: Vec<XfrmCommand> = grammar::lines(text, prefix)
            .map(|line| line.unwrap_or_else(|fault| panic!("{text}{fault:?}")).value)
            .collect();
        assert_eq!(commands.len(), 1);
        request(&commands.remove(0)).unwrap().0
    });
    assert_eq!(both[0].bytes(), both[1].bytes());
    let [one, _] = both;
    one
}

fn message(request: &NetlinkRequest) -> NetlinkMessage<'_> {
    NetlinkMessages::of(request.bytes()).next().unwrap()
}

fn read_state(text: &str) -> SaConfig {
    match DumpedState::of(message(&requested(text))) {
        Ok(DumpedState::Whole(config)) => *config,
        other => panic!("{text}{other:?}"),
    }
}

fn read_policy(text: &str) -> Policy {
    dumped_policy(message(&requested(text))).unwrap_or_else(|refusal| panic!("{text}{refusal:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_state_is_read_as_it_was_written(seed: u64) {
        let config = arbitrary::state(&mut Rng::new(seed));
        let names = Names::none();
        let mut writer = line(&names, Keys::Shown);
        prop_assert_eq!(read_state(writer.state(&config).unwrap()), config);
    }

    #[test]
    fn any_policy_is_read_as_it_was_written(seed: u64) {
        let policy = arbitrary::policy(&mut Rng::new(seed));
        let names = Names::none();
        let mut writer = line(&names, Keys::Shown);
        prop_assert_eq!(read_policy(writer.policy(&policy).unwrap()), policy);
    }

    #[test]
    fn no_line_with_hidden_keys_is_read(seed: u64) {
        let config = arbitrary::state(&mut Rng::new(seed));
        let names = Names::none();
        let mut writer = line(&names, Keys::Hidden);
        let text = writer.state(&config).unwrap();
        let keys = &config.transform;
        for key in [&keys.encryption_key, &keys.authentication_key] {
            let digits: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert!(digits.is_empty() || !text.contains(&digits), "{}", text);
        }
        for prefix in [LinePrefix::Program, LinePrefix::Optional] {
            prop_assert!(grammar::lines(text, prefix).next().unwrap().is_err(), "{}", text);
        }
    }
}

#[test]
fn devices_are_named_as_this_host_names_them() {
    let names = Names::of_host();
    let mut writer = line(&names, Keys::Shown);
    let mut rng = Rng::new(1);
    let mut config = arbitrary::state(&mut rng);
    config.tfc_padding = 0;
    config.direction = None;
    config.pcpu = None;
    config.nat_keepalive = None;
    config.offload = Some(Offload {
        kind: OffloadKind::Packet,
        device: "if1".to_owned(),
        direction: Direction::In,
    });
    let text = writer.state(&config).unwrap();
    assert!(text.contains(" offload packet dev lo dir in"), "{text}");
    let text = text.to_owned();
    assert_eq!(read_state(&text), config);

    let mut policy = arbitrary::policy(&mut rng);
    policy.selector.ifindex = 1;
    let text = writer.policy(&policy).unwrap().to_owned();
    assert!(text.contains(" dev lo "), "{text}");
    assert_eq!(read_policy(&text), policy);
    policy.selector.ifindex = 4_000_000;
    let text = writer.policy(&policy).unwrap().to_owned();
    assert!(text.contains(" dev if4000000 "), "{text}");
    assert_eq!(read_policy(&text), policy);
}

#[test]
fn what_no_line_can_say_is_refused() {
    let names = Names::none();
    let mut writer = line(&names, Keys::Shown);
    let any = Prefix::any(uxfrm_engine::Family::V4);
    let plain = Policy::block(Direction::Out, any, any);
    assert!(writer.policy(&plain).is_ok());
    let nothing_counts = Policy { mark: Mark { value: 5, mask: 0 }, ..plain.clone() };
    let error = writer.policy(&nothing_counts).unwrap_err();
    assert_eq!(error.to_string(), "no line of ip xfrm can say a mark of which no bit counts");
    let of_a_user = Policy { selector: Selector { user: 7, ..plain.selector }, ..plain.clone() };
    assert!(writer.policy(&of_a_user).is_err());
    let held = Policy { flags: uxfrm_engine::PolicyFlags::HELD, if_id: IfId(3), ..plain };
    assert!(writer.policy(&held).is_err());
    let mut rng = Rng::new(2);
    let config = arbitrary::state(&mut rng);
    let config = SaConfig { care_of: Some(config.source), ..config };
    assert!(writer.state(&config).is_err());
}

/// Debian's own `ip` takes lines whose words it knows: they have no word of ours.
#[test]
fn usual_lines_have_only_iproute2s_words() {
    let words = "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00000101 mode tunnel reqid 7 \
                 mark 0x5 mask 0xff output-mark 0x6 mask 0xf if_id 9 replay-window 64 flag noecn esn \
                 encap espinudp 4500 4500 0.0.0.0 \
                 auth-trunc hmac(sha256) 0x0101010101010101010101010101010101010101010101010101010101010101 128 \
                 enc cbc(aes) 0x02020202020202020202020202020202 limit byte-hard 1000 \
                 sel src 10.1.0.0/16 dst 10.2.0.0/16 proto udp sport 7\n";
    let names = Names::none();
    assert_eq!(line(&names, Keys::Shown).state(&read_state(words)).unwrap(), words);
    let words = "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto icmp type 8 dir out ptype sub mark 0x5 \
                 priority 100 flag localok icmp if_id 9 limit time-hard 60 \
                 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel reqid 7 \
                 tmpl src 0.0.0.0 dst 0.0.0.0 proto comp mode transport\n";
    assert_eq!(line(&names, Keys::Shown).policy(&read_policy(words)).unwrap(), words);
}
