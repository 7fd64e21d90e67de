//! The check tables of `xfrm_dev_state_add`, `xfrm_dev_policy_add` and the drivers ixgbe, mlx5 and
//! netdevsim, a row each: the line of `ip xfrm` that asks, as bytes through the netlink server;
//! errno and extended ACK that come back, or where the state is then.
//!
//! Names of rows are what the kernel looks at. `lo` stands for the device: a name that every
//! namespace has, and the kernel's number for it.

use uxfrm_engine::Offload;
use uxfrm_netlink::{
    ClientId, Groups, NetlinkMessages, Outbox, Server, ServerSettings, SocketOptions,
    client::ReplyStatus,
};
use uxfrm_offload::Fault;
use uxfrm_xfrm::{grammar, request::request};

use super::*;

const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EPROTONOSUPPORT: i32 = 93;

const GCM128: &str = "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128";
const WEAK: &str = "Device failed to offload this state";
const CLIENT: ClientId = ClientId { connection: 1, port: 7 };

/// An answer: errno and words when it is refused.
type Told = Result<(), (i32, String)>;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Errno and words.
    Refused(i32, &'static str),
    /// Done, and in software.
    Software,
    /// Done, and on the device.
    Device,
}
use Outcome::{Device, Refused, Software};

struct Stand {
    devices: Devices,
    database: Database,
    server: Server,
}

impl Stand {
    /// A gateway with a device of `profile` called `lo`, or without one.
    fn new(profile: &str) -> Self {
        let text = match profile {
            "" => String::new(),
            profile => format!("[[device]]\nname = 'lo'\nprofile = '{profile}'"),
        };
        let config = crate::config::Config::parse("c.toml", &text).unwrap();
        let mut database = Database::new(Backend::Auto, 1);
        let devices =
            Devices::plug(&config.device, DeviceCreation::Real, 0, &mut database).unwrap();
        let settings = ServerSettings { cpus: 1, epoch: 0, seed: 1, acquire_expires: 30 };
        let mut server = Server::new(settings);
        server.join(CLIENT, Groups::empty(), SocketOptions::EXT_ACK | SocketOptions::CAP_ACK);
        Self { devices, database, server }
    }

    fn nic(&self) -> Arc<Mutex<ModelNic>> {
        self.devices.nics.nic("lo").unwrap().0
    }

    /// The answer to a line of `ip xfrm`: errno and words.
    fn ask(&mut self, line: &str) -> Told {
        self.ask_bytes(line).1
    }

    /// The request's bytes and the answers', and the answer as [`Stand::ask`] has it.
    fn ask_bytes(&mut self, line: &str) -> ([Vec<u8>; 2], Told) {
        let command = grammar::line(line, None).unwrap().unwrap();
        let (mut request, _) = request(&command).unwrap();
        request.number(1);
        self.ask_raw(line, request.bytes().to_vec())
    }

    fn ask_raw(&mut self, line: &str, request: Vec<u8>) -> ([Vec<u8>; 2], Told) {
        let mut out = Outbox::default();
        self.server.handle(CLIENT, &request, &mut self.database, now(), &mut out);
        let mut bytes = [request, Vec::new()];
        let mut answer = Ok(());
        for delivery in out.drain() {
            bytes[1].extend(delivery.datagram.bytes());
            for message in NetlinkMessages::of(delivery.datagram.bytes()) {
                if let ReplyStatus::Refused(refusal) = ReplyStatus::of(&message) {
                    let words = refusal.text.as_ref().map(ToString::to_string);
                    answer = Err((refusal.errno, words.unwrap_or_default()));
                }
            }
        }
        assert!(!bytes[1].is_empty(), "{line}: no answer");
        (bytes, answer)
    }

    fn assert(&mut self, row: &str, line: &str, outcome: &Outcome) {
        let before = self.database.snapshot().sad.len();
        let answer = self.ask(line);
        match outcome {
            Refused(errno, words) => {
                assert_eq!(answer, Err((*errno, (*words).to_owned())), "{row}: {line}");
                assert_eq!(self.database.snapshot().sad.len(), before, "{row}: nothing is left");
            }
            Software | Device => {
                assert_eq!(answer, Ok(()), "{row}: {line}");
                self.database.publish();
                let snapshot = self.database.snapshot();
                let attached = snapshot.sad.all_offloaded().count();
                assert_eq!(attached > 0, *outcome == Device, "{row}: {line}");
            }
        }
    }
}

/// A state's line: `with` for what it is by default, and the offload.
fn state(with: &str, offload: &str) -> String {
    let mut words = "mode transport reqid 1 replay-window 32".to_owned();
    if with.contains("mode ") {
        words = words.replace("mode transport ", "");
    }
    if with.contains("reqid ") {
        words = words.replace("reqid 1 ", "");
    }
    if with.contains("replay-window ") {
        words = words.replace("replay-window 32", "");
    }
    let keys = if with.contains("aead ") || with.contains("enc ") { "" } else { GCM128 };
    let ends = "src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x100";
    format!("xfrm state add {ends} {words} {with} {keys} offload {offload}")
}

/// Row, profile, words of the state beside the usual ones, offload, outcome.
type Row = (&'static str, &'static str, &'static str, &'static str, Outcome);

const CRYPTO_IN: &str = "crypto dev lo dir in";
const CRYPTO_OUT: &str = "crypto dev lo dir out";
const PACKET_IN: &str = "packet dev lo dir in";

#[test]
fn what_the_stack_looks_at_before_the_driver() {
    for (row, profile, with, offload, outcome) in [
        (
            "offload dir != XFRMA_SA_DIR",
            "unlimited",
            "dir in",
            CRYPTO_OUT,
            Refused(EINVAL, "Mismatched SA and offload direction"),
        ),
        (
            "inbound and if_id set",
            "unlimited",
            "if_id 1",
            CRYPTO_IN,
            Refused(EINVAL, "XFRM if_id is not supported in RX path"),
        ),
        (
            "tfcpad",
            "unlimited",
            "mode tunnel tfcpad 100",
            CRYPTO_IN,
            Refused(EINVAL, "TFC padding can't be offloaded"),
        ),
        ("dev has no xfrmdev_ops, crypto", "", "", CRYPTO_IN, Software),
        (
            "dev has no xfrmdev_ops, packet",
            "",
            "",
            PACKET_IN,
            Refused(EINVAL, "Device if1 doesn't support packet offload"),
        ),
        (
            "crypto + ESN + no advance_esn",
            "niantic",
            "flag esn",
            CRYPTO_IN,
            Refused(EINVAL, "Device doesn't support offload with ESN"),
        ),
        ("crypto + ESN + advance_esn", "connectx6dx", "flag esn", CRYPTO_IN, Device),
        ("legacy offload dev", "niantic", "", "dev lo dir in", Device),
    ] as [Row; 8]
    {
        Stand::new(profile).assert(row, &state(with, offload), &outcome);
    }
}

#[test]
fn what_ixgbe_looks_at() {
    const GCM256: &str = "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324 128";
    const ICV96: &str = "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 96";
    const CBC: &str = "auth-trunc hmac(sha1) 0x0102030405060708090a0b0c0d0e0f1011121314 96 enc cbc(aes) 0x0102030405060708090a0b0c0d0e0f10";
    let key = |way| match way {
        CRYPTO_IN => Refused(EINVAL, "Failed to get key data for Rx SA table"),
        _ => Refused(EINVAL, "Failed to get key data for Tx SA table"),
    };
    for (row, profile, with, offload, outcome) in [
        (
            "mode",
            "niantic",
            "mode tunnel",
            CRYPTO_IN,
            Refused(EINVAL, "Unsupported mode for ipsec offload"),
        ),
        ("type", "niantic", "", PACKET_IN, Refused(EINVAL, "Unsupported ipsec offload type")),
        ("key of 256 bits, Rx", "niantic", GCM256, CRYPTO_IN, key(CRYPTO_IN)),
        ("key of 256 bits, Tx", "niantic", GCM256, CRYPTO_OUT, key(CRYPTO_OUT)),
        ("ICV of 96 bits, Rx", "niantic", ICV96, CRYPTO_IN, key(CRYPTO_IN)),
        ("no aead, Tx", "niantic", CBC, CRYPTO_OUT, key(CRYPTO_OUT)),
        ("all right, Rx", "niantic", "", CRYPTO_IN, Device),
        ("all right, Tx", "niantic", "", CRYPTO_OUT, Device),
    ] as [Row; 8]
    {
        Stand::new(profile).assert(row, &state(with, offload), &outcome);
    }
}

#[test]
fn how_full_ixgbes_and_netdevsims_tables_get() {
    for (row, profile, places, offload, to, words) in [
        ("ixgbe, Rx SA table", "niantic", 1024, CRYPTO_IN, None, "No space for SA in Rx table!"),
        ("ixgbe, Tx SA table", "niantic", 1024, CRYPTO_OUT, None, "No space for SA in Tx table"),
        (
            "ixgbe, Rx IP SA table",
            "niantic",
            128,
            CRYPTO_IN,
            Some(()),
            "No space for SA in Rx IP SA table",
        ),
        ("netdevsim", "netdevsim", 33, CRYPTO_OUT, None, "No space for SA in Rx table!"),
    ] {
        let mut stand = Stand::new(profile);
        let line = |number: u32| {
            let line = state("", offload).replace("0x100", &(0x1000 + number).to_string());
            let destination = to.map_or(0, |()| number);
            line.replace(
                "10.0.0.2",
                &format!("10.7.{}.{}", destination / 250, 1 + destination % 250),
            )
        };
        for number in 0..places {
            assert_eq!(stand.ask(&line(number)), Ok(()), "{row}: {number}");
        }
        stand.assert(row, &line(places), &Refused(ENOSPC, words));
        let added = line(3);
        let words: Vec<_> = added.split(' ').collect();
        let (destination, spi) = (words[6], words[10]);
        let deletion =
            format!("xfrm state delete src 10.0.0.1 dst {destination} proto esp spi {spi}");
        assert_eq!(stand.ask(&deletion), Ok(()), "{deletion}");
        stand.assert(row, &line(places), &Device);
    }
}

#[test]
fn what_ixgbe_looks_at_for_virtual_functions() {
    let text = "[[device]]\nname = 'lo'\nprofile = 'niantic'";
    let config = crate::config::Config::parse("c.toml", text).unwrap();
    let mut stand = Stand::new("niantic");
    // A function that is called `lo` instead of the device: no other name is there for everybody.
    stand.devices = Devices::plug(&[], DeviceCreation::DryRun, 0, &mut stand.database).unwrap();
    let addition = Addition { name: "nic0".into(), functions: 1, ..config.device[0].addition() };
    stand.devices.install(addition, DeviceCreation::DryRun).unwrap();
    let (nic, function) = stand.devices.nics.nic("nic0v0").unwrap();
    let mut spi = 0;
    for (trust, refused) in [(Trust::Untrusted, Some((EACCES, WEAK))), (Trust::Trusted, None)] {
        lock(&nic).set_trust(function, trust);
        for direction in [uxfrm_engine::Direction::In, uxfrm_engine::Direction::Out] {
            let kind = uxfrm_engine::OffloadKind::Crypto;
            spi += 1;
            let mut config = uxfrm_testkit::IpsecSetup::transport4()
                .sa(uxfrm_testkit::PairDirection::LeftToRight, spi);
            config.offload = Some(Offload { kind, device: "nic0v0".into(), direction });
            let added = stand.database.apply(now(), |change| change.add_sa(config));
            let told = added.err().map(|error| {
                let uxfrm_engine::Error::Device(refusal) = error else { panic!("{error}") };
                (refusal.errno, refusal.text)
            });
            assert_eq!(told, refused.map(|(errno, words)| (errno, words.to_owned())));
        }
    }
}

#[test]
fn what_mlx5_looks_at_of_states() {
    const CBC: &str = "auth-trunc hmac(sha1) 0x0102030405060708090a0b0c0d0e0f1011121314 96 enc cbc(aes) 0x0102030405060708090a0b0c0d0e0f10";
    const CHACHA: &str = "aead rfc7539esp(chacha20,poly1305) 0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324 128";
    const ICV96: &str = "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 96";
    const GCM192: &str =
        "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c 128";
    const UDP: &str = "encap espinudp 4500 4500 0.0.0.0";
    const NON_IKE: &str = "encap espinudp-nonike 4500 4500 0.0.0.0";
    let no = |words| Refused(EINVAL, words);
    for (row, with, offload, outcome) in [
        ("auth", CBC, PACKET_IN, no("Cannot offload authenticated xfrm states")),
        ("aead", CHACHA, PACKET_IN, no("Only AES-GCM-ICV16 xfrm state may be offloaded")),
        ("ICV 16", ICV96, PACKET_IN, no("Only AES-GCM-ICV16 xfrm state may be offloaded")),
        (
            "key 128/256",
            GCM192,
            PACKET_IN,
            no("Cannot offload xfrm states with AEAD key length other than 128/256 bit"),
        ),
        (
            "encap espinudp only",
            NON_IKE,
            PACKET_IN,
            no("Encapsulation other than UDP is not supported"),
        ),
        (
            "encap in packet kind only",
            UDP,
            CRYPTO_IN,
            no("Encapsulation is supported in packet offload mode only"),
        ),
        (
            "encap in transport mode only",
            "mode tunnel encap espinudp 4500 4500 0.0.0.0",
            PACKET_IN,
            no("Encapsulation is supported in transport mode only"),
        ),
        ("encap in transport mode", UDP, PACKET_IN, Device),
        (
            "upper protocol",
            "sel src 10.0.0.1/32 dst 10.0.0.2/32 proto 1",
            PACKET_IN,
            no("Device does not support upper protocol other than TCP/UDP"),
        ),
        (
            "mode: there is no BEET without device either",
            "mode beet sel src 10.0.0.1/32 dst 10.0.0.2/32",
            PACKET_IN,
            Refused(EPROTONOSUPPORT, "Requested mode not found"),
        ),
        ("replay window", "replay-window 96", PACKET_IN, no("Unsupported replay window size")),
        ("reqid", "reqid 0", PACKET_IN, no("Cannot offload without reqid")),
        (
            "byte limits",
            "limit byte-soft 9 limit byte-hard 9",
            PACKET_IN,
            no("Hard byte limit must be greater than soft one"),
        ),
        (
            "byte limits of 0",
            "limit byte-soft 0 limit byte-hard 9",
            PACKET_IN,
            no("Soft/hard byte limits can't be 0"),
        ),
        (
            "packet limits",
            "limit packet-soft 9 limit packet-hard 8",
            PACKET_IN,
            no("Hard packet limit must be greater than soft one"),
        ),
        (
            "packet limits of 0",
            "limit packet-soft 0 limit packet-hard 9",
            PACKET_IN,
            no("Soft/hard packet limits can't be 0"),
        ),
        ("all right, tunnel", "mode tunnel flag esn replay-window 256", PACKET_IN, Device),
        ("all right, crypto", "reqid 0 replay-window 96", CRYPTO_IN, Device),
    ] {
        Stand::new("connectx6dx").assert(row, &state(with, offload), &outcome);
    }
    let mut busy = Stand::new("connectx6dx");
    lock(&busy.nic()).inject(Fault::Busy(1));
    busy.assert("eswitch blocks", &state("", PACKET_IN), &Refused(EBUSY, WEAK));
    busy.assert("eswitch does not block any more", &state("", PACKET_IN), &Device);
}

#[test]
fn what_netdevsim_looks_at() {
    const CBC: &str = "auth-trunc hmac(sha1) 0x0102030405060708090a0b0c0d0e0f1011121314 96 enc cbc(aes) 0x0102030405060708090a0b0c0d0e0f10";
    for (row, with, offload, outcome) in [
        ("type", "", PACKET_IN, Refused(EINVAL, "Unsupported ipsec offload type")),
        ("key", CBC, CRYPTO_IN, Refused(EINVAL, "Failed to get key data for SA table")),
        ("all right", "", CRYPTO_OUT, Device),
    ] {
        Stand::new("netdevsim").assert(row, &state(with, offload), &outcome);
    }
}

#[test]
fn what_is_looked_at_of_policies() {
    let policy = |selector: &str, with: &str, template: &str| {
        let priority = if with.contains("priority") { "" } else { "priority 1" };
        format!("xfrm policy add {selector} {priority} {with} offload packet dev lo {template}")
    };
    const NET: &str = "src 10.1.0.0/24 dst 10.2.0.0/24 dir out";
    const TMPL: &str = "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel reqid 1";
    let two = format!("{TMPL} {TMPL}");
    for (row, profile, line, errno, words) in [
        (
            "no op: an interface without a model",
            "",
            policy(NET, "", TMPL),
            EINVAL,
            "Policy offload is not supported",
        ),
        ("no op", "niantic", policy(NET, "", TMPL), EINVAL, "Policy offload is not supported"),
        (
            "main type only",
            "connectx6dx",
            policy(NET, "ptype sub", TMPL),
            EINVAL,
            "Cannot offload non-main policy types",
        ),
        (
            "one template",
            "connectx6dx",
            policy(NET, "", &two),
            EINVAL,
            "Cannot offload more than one template",
        ),
        (
            "no fwd",
            "connectx6dx",
            policy("src 10.1.0.0/24 dst 10.2.0.0/24 dir fwd", "", TMPL),
            EINVAL,
            "Cannot offload forward policy",
        ),
        (
            "reqid or selector",
            "connectx6dx",
            policy("src 0.0.0.0/0 dst 0.0.0.0/0 dir out", "", &TMPL.replace("reqid 1", "reqid 0")),
            EINVAL,
            "Unsupported policy with reqid 0 without at least one of upper protocol or ip addr(s) different than 0",
        ),
        (
            "upper protocol",
            "connectx6dx",
            policy("src 10.1.0.0/24 dst 10.2.0.0/24 proto 1 dir out", "", TMPL),
            EINVAL,
            "Device does not support upper protocol other than TCP/UDP",
        ),
        (
            "priority",
            "connectx6dx",
            policy(NET, "priority 4294967295", TMPL),
            EINVAL,
            "Device does not support requested policy priority",
        ),
    ] {
        let mut stand = Stand::new(profile);
        assert_eq!(stand.ask(&line), Err((errno, words.to_owned())), "{row}: {line}");
        assert_eq!(stand.database.snapshot().spd.iter().count(), 0, "{row}");
    }
    let mut busy = Stand::new("connectx6dx");
    lock(&busy.nic()).inject(Fault::Busy(1));
    let weak = (EBUSY, "Device failed to offload this policy".to_owned());
    assert_eq!(busy.ask(&policy(NET, "", TMPL)), Err(weak));
    assert_eq!(busy.ask(&policy(NET, "", TMPL)), Ok(()));
    assert_eq!(lock(&busy.nic()).policies(), 1);
}

/// `XFRMA_OFFLOAD_DEV`: `struct xfrm_user_offload { int ifindex; __u8 flags; }`, with 3 bytes of
/// padding; asked and answered byte for byte.
#[test]
fn the_attribute_is_the_kernels_both_ways() {
    const IN: u8 = 2;
    const PACKET: u8 = 4;
    let attribute = |flags| [12, 0, 28, 0, 1, 0, 0, 0, flags, 0, 0, 0];
    let has = |bytes: &[u8], flags| bytes.windows(12).any(|some| some == attribute(flags));
    for (offload, flags) in [
        ("crypto dev lo dir in", IN),
        ("crypto dev lo dir out", 0),
        ("packet dev lo dir in", IN | PACKET),
        ("packet dev lo dir out", PACKET),
    ] {
        let mut stand = Stand::new("unlimited");
        let ([asked, _], added) = stand.ask_bytes(&state("", offload));
        assert_eq!((added, has(&asked, flags)), (Ok(()), true), "{offload}");
        let get = "xfrm state get src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x100";
        let ([_, shown], _) = stand.ask_bytes(get);
        assert!(has(&shown, flags), "{offload}: {shown:?}");
    }
    for direction in ["in", "out", "fwd"] {
        let mut stand = Stand::new("unlimited");
        let id = format!("src 10.1.0.0/24 dst 10.2.0.0/24 dir {direction}");
        let template = "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel reqid 1";
        let line = format!("xfrm policy add {id} offload packet dev lo {template}");
        let ([asked, _], added) = stand.ask_bytes(&line);
        assert_eq!((added, has(&asked, PACKET)), (Ok(()), true), "{line}");
        let ([_, shown], _) = stand.ask_bytes(&format!("xfrm policy get {id}"));
        let inward = if direction == "in" { IN } else { 0 };
        assert!(has(&shown, PACKET | inward), "{direction}: {shown:?}");
    }
}

/// "ifindex not found": the device of the route. That to loopback is there for everybody.
#[test]
fn a_device_that_is_not_there_is_looked_for_by_route() {
    const NOWHERE: u32 = 0x3fff_ffff;
    let refused = "Device if1073741823 doesn't support packet offload".to_owned();
    for (profile, peer, kind, direction, outcome) in [
        ("unlimited", "127.0.0.2", "crypto", "out", Ok(1)),
        ("unlimited", "127.0.0.2", "packet", "out", Ok(1)),
        ("unlimited", "127.0.0.2", "packet", "in", Ok(1)),
        ("", "127.0.0.2", "crypto", "out", Ok(0)),
        ("", "127.0.0.2", "packet", "out", Err((EINVAL, refused.clone()))),
        // No route leads there, for nobody.
        ("unlimited", "0.0.0.1", "crypto", "out", Ok(0)),
        ("unlimited", "0.0.0.1", "packet", "out", Err((EINVAL, refused.clone()))),
    ] {
        let line = state("", &format!("{kind} dev lo dir {direction}"));
        let end = if direction == "in" { "10.0.0.1" } else { "10.0.0.2" };
        let line = line.replace(end, peer);
        for number in [0, NOWHERE] {
            let command = grammar::line(&line, None).unwrap().unwrap();
            let (mut request, _) = request(&command).unwrap();
            request.number(1);
            let mut bytes = request.bytes().to_vec();
            let attribute = bytes.windows(8).position(|some| some == [12, 0, 28, 0, 1, 0, 0, 0]);
            let at = attribute.unwrap() + 4;
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
            let mut stand = Stand::new(profile);
            let (_, told) = stand.ask_raw(&line, bytes);
            stand.database.publish();
            let attached = stand.database.snapshot().sad.all_offloaded().count();
            let outcome = outcome.clone().map_err(|(errno, words)| {
                (errno, words.replace(&NOWHERE.to_string(), &number.to_string()))
            });
            assert_eq!(told.map(|()| attached), outcome, "{number}: {line}");
        }
    }
}
