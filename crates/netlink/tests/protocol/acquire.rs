//! Acquires and larval states: the same bytes as the machine's kernel sends for the same packet and
//! policy, and what workers are told.

use std::{
    collections::BTreeSet,
    net::UdpSocket,
    process::Command,
    sync::{Arc, Mutex, MutexGuard},
};

use netlink_sys::{Socket, protocols::NETLINK_XFRM};
use uxfrm_engine::{
    Attachment, Cpu, DeviceEvent, DeviceId, DeviceRefusal, DeviceSaCounters, Event, FlowKey,
    Handle, IfId, IvPrefix, KeyManagers, Mark, Mode, Moment, OffloadDevices, Policy, PolicyIndex,
    Reqid, SaConfig, SaHistory, SaProgress, SaProtocol, SaRequest, Spi,
};
use uxfrm_netlink::{Groups, Outbox, SocketOptions};

use crate::{
    kernel::{Kernel, against_the_kernel, hex},
    stage::{Answer, LISTENER, Stage, attribute, golden, message, take_apart},
};

const NEW_SA: u16 = 0x10;
const DEL_SA: u16 = 0x11;
const GET_SA: u16 = 0x12;
const NEW_POLICY: u16 = 0x13;
const ALLOC_SPI: u16 = 0x16;
const ACQUIRE: u16 = 0x17;
const EXPIRE: u16 = 0x18;
const FLUSH_SA: u16 = 0x1c;

const SOURCE: [u8; 4] = [10, 0, 0, 1];
const DESTINATION: [u8; 4] = [10, 1, 0, 5];

/// A policy from 10.0.0.0/24 to 10.1.0.0/16 for UDP; the gateways are 192.0.2.1 and 192.0.2.2.
pub(crate) struct Words {
    mode: Mode,
    attributes: Vec<u8>,
    mark: Mark,
    if_id: IfId,
    /// What the engine wants under `flag cpu-acquire` when there is a fallback.
    pcpu: Option<Cpu>,
}

impl Words {
    pub(crate) fn tunnel() -> Self {
        Self {
            mode: Mode::Tunnel,
            attributes: Vec::new(),
            mark: Mark::default(),
            if_id: IfId(0),
            pcpu: None,
        }
    }

    /// What the template says of source and destination.
    fn ends(&self) -> Option<([u8; 4], [u8; 4])> {
        (self.mode == Mode::Tunnel).then_some(([192, 0, 2, 1], [192, 0, 2, 2]))
    }

    fn request(&self) -> Vec<u8> {
        let mut body = vec![0; 168];
        body[0..4].copy_from_slice(&[10, 1, 0, 0]);
        body[16..20].copy_from_slice(&[10, 0, 0, 0]);
        body[40..42].copy_from_slice(&2_u16.to_ne_bytes());
        body[42..45].copy_from_slice(&[16, 24, 17]);
        (0..4).for_each(|limit| body[56 + 8 * limit..64 + 8 * limit].fill(0xff));
        body[152] = 9;
        body[160] = 1;
        let mut template = vec![0; 64];
        let ends = self.ends().unwrap_or_default();
        template[0..4].copy_from_slice(&ends.1);
        template[20] = 50;
        template[24..26].copy_from_slice(&2_u16.to_ne_bytes());
        template[28..32].copy_from_slice(&ends.0);
        template[44..48].copy_from_slice(&7_u32.to_ne_bytes());
        template[48] = u8::from(self.mode == Mode::Tunnel);
        template[52..].fill(0xff);
        message(NEW_POLICY, 5, &[body, attribute(5, &template), self.attributes.clone()].concat())
    }

    /// What the engine says of a packet from port 7 to port 9.
    fn event(&self, policy: PolicyIndex, destination: [u8; 4]) -> Event {
        let ends = self.ends().unwrap_or((SOURCE, destination));
        let wanted = SaRequest {
            source: ends.0.into(),
            destination: ends.1.into(),
            protocol: SaProtocol::Esp,
            spi: Spi(0),
            mode: self.mode,
            reqid: Reqid(7),
            mark: self.mark,
            if_id: self.if_id,
            pcpu: self.pcpu,
        };
        let flow = FlowKey {
            source: SOURCE.into(),
            destination: destination.into(),
            protocol: 17,
            source_port: 7,
            destination_port: 9,
            mark: self.mark.value,
            if_id: self.if_id.0,
            ifindex: 0,
        };
        Event::Acquire { policy, template: 0, wanted, flow }
    }
}

impl Stage {
    fn acquire(&mut self, words: &Words, destination: [u8; 4]) -> Vec<Answer> {
        let before = self.database.snapshot();
        let index = before.spd.iter().next().map_or(PolicyIndex(0), |entry| entry.index());
        let mut out = Outbox::default();
        let event = words.event(index, destination);
        self.server.announce(&event, &before, &mut self.database, self.now, &mut out);
        self.server.publish_acquires(&mut self.database);
        self.sort(&mut out);
        std::mem::take(&mut self.heard).iter().flat_map(|bytes| take_apart(bytes)).collect()
    }

    fn expire(&mut self, at: Moment) -> Vec<Answer> {
        let mut out = Outbox::default();
        self.server.handle_timeout(at, &mut out);
        self.server.publish_acquires(&mut self.database);
        self.sort(&mut out);
        std::mem::take(&mut self.heard).iter().flat_map(|bytes| take_apart(bytes)).collect()
    }

    fn pending(&self) -> usize {
        self.database.snapshot().acquires.pending.len()
    }

    pub(crate) fn prepared(words: &Words) -> Self {
        let mut stage = Self::new();
        let answers = stage.ask(&words.request());
        assert_eq!(answers[0].verdict(), Some((0, String::new())));
        stage.heard.clear();
        stage.server.publish_acquires(&mut stage.database);
        stage
    }
}

/// Everything but times, counters of the whole kernel (acquires, policies), and the packet's output
/// interface, which the engine does not know.
fn timeless(answers: &[Answer]) -> Vec<String> {
    let lines = answers.iter().map(|answer| {
        let mut body = answer.body.clone();
        let unlike = match answer.kind {
            NEW_SA | EXPIRE => vec![48..52, 176..192, 204..208],
            DEL_SA => vec![76..80, 204..220, 232..236],
            ACQUIRE => vec![88..92, 232..248, 252..256, 276..280],
            _ => Vec::new(),
        };
        unlike.into_iter().for_each(|range| body[range].fill(0));
        format!("{:#x} {:#x} {} {}", answer.kind, answer.flags, answer.seq, hex(&body))
    });
    lines.collect()
}

/// A listener of the kernel's, on a namespace with a veth that leads to 10.1.0.0/16.
struct Ear(Socket);

impl Ear {
    fn open() -> Self {
        let script = "ip link add v0 type veth peer name v1 && ip addr add 10.0.0.1/24 dev v0 && \
                      ip link set v0 up && ip link set v1 up && ip route add 10.1.0.0/16 dev v0";
        assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success());
        let mut socket = Socket::new(NETLINK_XFRM).unwrap();
        socket.bind_auto().unwrap();
        socket.add_membership(1).unwrap();
        socket.add_membership(2).unwrap();
        Self(socket)
    }

    /// The next message, waited for.
    fn hear(&self) -> Vec<Answer> {
        let mut bytes = Vec::with_capacity(1 << 16);
        self.0.recv(&mut bytes, 0).unwrap();
        take_apart(&bytes)
    }

    /// Whether there is none.
    fn is_quiet(&self) -> bool {
        self.0.recv(&mut Vec::with_capacity(1 << 16), 0x40).is_err()
    }
}

/// A packet from port 7 to port 9; whether it leaves does not matter.
fn send(destination: [u8; 4], mark: u32) {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::from(SOURCE), 7)).unwrap();
    if mark != 0 {
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Mark, &mark).unwrap();
    }
    let _refused = socket.send_to(b"packet", (std::net::Ipv4Addr::from(destination), 9));
}

fn allocate(seq: u32, spi: u32, mode: u8) -> Vec<u8> {
    let mut body = vec![0; 232];
    body[56..60].copy_from_slice(&[192, 0, 2, 2]);
    body[76] = 50;
    body[80..84].copy_from_slice(&[192, 0, 2, 1]);
    body[204..208].copy_from_slice(&seq.to_ne_bytes());
    body[208..212].copy_from_slice(&7_u32.to_ne_bytes());
    body[212..214].copy_from_slice(&2_u16.to_ne_bytes());
    body[214] = mode;
    body[224..228].copy_from_slice(&spi.to_ne_bytes());
    body[228..232].copy_from_slice(&spi.to_ne_bytes());
    message(ALLOC_SPI, 1, &body)
}

pub(crate) fn by_spi(kind: u16, spi: u32) -> Vec<u8> {
    let mut body = vec![0; 24];
    body[0..4].copy_from_slice(&[192, 0, 2, 2]);
    body[16..20].copy_from_slice(&spi.to_be_bytes());
    body[20..22].copy_from_slice(&2_u16.to_ne_bytes());
    body[22] = 50;
    message(kind, 5, &body)
}

fn compare(kernel: &Kernel, stage: &mut Stage, request: &[u8]) {
    let (theirs, ours) = (kernel.ask(request), stage.ask(request));
    assert_eq!(timeless(&ours), timeless(&theirs), "ours, the kernel's: {}", hex(request));
}

#[test]
fn acquire_bytes_are_the_kernels() {
    against_the_kernel(|kernel| {
        let ear = Ear::open();
        let dump = message(GET_SA, 0x301, &[]);
        let marked = [attribute(21, &[5, 0, 0, 0, 0xff, 0, 0, 0]), attribute(16, &[0; 6])].concat();
        let all = [
            Words::tunnel(),
            Words { mode: Mode::Transport, ..Words::tunnel() },
            Words { attributes: marked, mark: Mark { value: 5, mask: 0xff }, ..Words::tunnel() },
        ];
        for words in &all {
            kernel.ask(&message(0x1d, 5, &[]));
            kernel.ask(&message(FLUSH_SA, 5, &[0]));
            let mut stage = Stage::prepared(words);
            assert_eq!(kernel.ask(&words.request())[0].verdict(), Some((0, String::new())));
            send(DESTINATION, words.mark.value);
            let (theirs, ours) = (ear.hear(), stage.acquire(words, DESTINATION));
            assert_eq!(timeless(&ours), timeless(&theirs));
            let seq = [&ours, &theirs].map(|answers| answers[0].body[276..280].to_vec());
            let (theirs, ours) = (kernel.ask(&dump), stage.ask(&dump));
            assert_eq!(timeless(&ours), timeless(&theirs), "the larval state");
            assert_eq!([&ours, &theirs].map(|answers| answers[0].body[204..208].to_vec()), seq);
        }
    });
}

/// `build_acquire`, `xfrm_state_look_at`: no kernel without ESP gets so far.
#[test]
fn acquire_of_a_cpu_is_not_another_cpus() {
    let of = |pcpu| Words { pcpu, ..Words::tunnel() };
    let told = attribute(35, &1_u32.to_ne_bytes());
    let mut stage = Stage::prepared(&of(None));
    let asked = stage.acquire(&of(Some(Cpu(1))), DESTINATION);
    assert!(asked[0].kind == ACQUIRE && asked[0].body.ends_with(&told));
    let larval = stage.ask(&message(GET_SA, 0x301, &[]));
    assert!(larval[0].kind == NEW_SA && larval[0].body.ends_with(&told));
    assert!(stage.acquire(&of(Some(Cpu(1))), DESTINATION).is_empty(), "it is in progress");
    assert!(stage.acquire(&of(None), DESTINATION).is_empty(), "any will do without a fallback");
    assert_eq!(stage.acquire(&of(Some(Cpu(0))), DESTINATION).len(), 1);
}

#[test]
fn larval_state_lifetime_is_the_kernels() {
    against_the_kernel(|kernel| {
        let words = Words::tunnel();
        let dump = message(GET_SA, 0x301, &[]);
        let mut stage = Stage::prepared(&words);
        std::fs::write("/proc/sys/net/core/xfrm_acq_expires", "1").unwrap();
        stage.server.set_acquire_expires(1);
        let ear = Ear::open();
        kernel.ask(&words.request());
        send(DESTINATION, 0);
        let theirs = ear.hear();
        assert_eq!(timeless(&stage.acquire(&words, DESTINATION)), timeless(&theirs));
        let seq = u32::from_ne_bytes(theirs[0].body[276..280].try_into().unwrap());
        // The next packets find it, whatever their flow.
        for destination in [DESTINATION, [10, 1, 9, 9]] {
            send(destination, 0);
            assert!(ear.is_quiet() && stage.acquire(&words, destination).is_empty());
        }
        // Without an SPI it is in dumps only.
        compare(kernel, &mut stage, &by_spi(GET_SA, 0));
        compare(kernel, &mut stage, &by_spi(DEL_SA, 0));
        compare(kernel, &mut stage, &message(GET_SA, 0x301, &[]));
        // ALLOCSPI with its number fills it in.
        let both = (kernel.ask(&allocate(seq, 0x1234, 1)), stage.ask(&allocate(1, 0x1234, 1)));
        assert_eq!(timeless(&both.1), timeless(&both.0));
        compare(kernel, &mut stage, &by_spi(GET_SA, 0x1234));
        assert!(stage.acquire(&words, DESTINATION).is_empty(), "it is in progress still");
        send(DESTINATION, 0);
        assert!(ear.is_quiet());
        // Nobody makes it real.
        let theirs = ear.hear();
        let ours = stage.expire(Moment::from_secs(10));
        assert_eq!(timeless(&ours), timeless(&theirs));
        compare(kernel, &mut stage, &dump);
        // The next packet asks anew, and a key manager may delete it.
        send(DESTINATION, 0);
        assert_eq!(timeless(&stage.acquire(&words, DESTINATION)), timeless(&ear.hear()));
        compare(kernel, &mut stage, &allocate(0, 0x4321, 1));
        compare(kernel, &mut stage, &by_spi(DEL_SA, 0x4321));
        compare(kernel, &mut stage, &dump);
    });
}

#[test]
fn acquires_and_listeners_are_published_to_workers() {
    let words = Words::tunnel();
    let mut stage = Stage::prepared(&words);
    let listening = |stage: &Stage| stage.database.snapshot().acquires.key_managers;
    assert_eq!(listening(&stage), KeyManagers::Listening);
    let generation = stage.database.snapshot().generation;
    assert_eq!(stage.acquire(&words, DESTINATION).len(), 1);
    let Event::Acquire { wanted, .. } = words.event(PolicyIndex(0), DESTINATION) else {
        unreachable!()
    };
    let until = stage.database.snapshot().acquires.pending.get(&wanted).copied();
    assert_eq!(until, Some(stage.now.plus(std::time::Duration::from_secs(30))));
    assert_eq!(stage.database.snapshot().generation, generation, "bundles stay");
    stage.server.leave(LISTENER);
    stage.server.publish_acquires(&mut stage.database);
    assert_eq!((listening(&stage), stage.pending()), (KeyManagers::Absent, 1));
    assert!(stage.expire(Moment::from_secs(31)).is_empty(), "nobody hears it");
    assert_eq!((stage.pending(), stage.server.poll_timeout()), (1, Some(until.unwrap())));
    stage.expire(until.unwrap());
    assert_eq!((stage.pending(), stage.server.poll_timeout()), (0, None));
    // Nobody listening, nothing is asked for.
    stage.server.join(LISTENER, Groups::SA | Groups::POLICY, SocketOptions::empty());
    assert!(stage.acquire(&words, DESTINATION).is_empty());
    assert_eq!((stage.pending(), stage.server.poll_timeout()), (0, None));
}

#[test]
fn new_state_completes_its_acquire() {
    let words = Words::tunnel();
    let add = |seq: u32| {
        let start = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
        let found = golden().into_iter().find(|(command, _)| command.starts_with(start));
        let mut add = found.unwrap().1;
        add[16 + 204..16 + 208].copy_from_slice(&seq.to_ne_bytes());
        add
    };
    // By its number, or by what it is: mode and reqid count then.
    for (seq, left) in [(1, 0), (0, 1), (99, 1)] {
        let mut stage = Stage::prepared(&words);
        stage.acquire(&words, DESTINATION);
        assert_eq!(stage.ask(&add(seq))[0].verdict(), Some((0, String::new())));
        stage.server.publish_acquires(&mut stage.database);
        assert_eq!(stage.pending(), left, "{seq}");
    }
    // ALLOCSPI and UPDSA.
    let mut stage = Stage::prepared(&words);
    stage.acquire(&words, DESTINATION);
    stage.ask(&allocate(1, 0x1000, 1));
    assert_eq!(stage.pending(), 1);
    let mut update = add(1);
    update[4..6].copy_from_slice(&0x1a_u16.to_ne_bytes());
    assert_eq!(stage.ask(&update)[0].verdict(), Some((0, String::new())));
    stage.server.publish_acquires(&mut stage.database);
    assert_eq!((stage.pending(), stage.database.snapshot().sad.len()), (0, 1));
}

/// A device that takes policies and larval states, until it refuses those.
#[derive(Clone, Debug, Default)]
struct Card(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    refuses: bool,
    next: u32,
    larvals: BTreeSet<u32>,
}

impl Card {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap()
    }
}

impl OffloadDevices for Card {
    fn attach_state(&mut self, _: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        Ok(None)
    }

    fn attach_larval(&mut self, device: DeviceId, _: &SaRequest) -> Result<Handle, DeviceRefusal> {
        assert_eq!(device, DeviceId(1));
        let mut held = self.held();
        if held.refuses {
            return Err(DeviceRefusal::invalid("no"));
        }
        held.next += 1;
        let next = held.next;
        held.larvals.insert(next);
        Ok(Handle(next))
    }

    fn open_state(&mut self, _: DeviceId, _: Handle, _: &SaProgress) {}

    fn set_history(&mut self, _: DeviceId, _: Handle, _: &SaHistory) {}

    fn update_state(&mut self, _: DeviceId, _: Handle, _: &SaConfig) {}

    fn reserve(&mut self, _: DeviceId, _: Handle, _: u64, _: u64) {}

    fn reserve_received(&mut self, _: DeviceId, _: Handle, _: u64, _: u64) {}

    fn set_iv_prefix(&mut self, _: DeviceId, _: Handle, _: IvPrefix) {}

    fn close_state(&mut self, _: DeviceId, _: Handle) {}

    fn detach_state(&mut self, _: DeviceId, handle: Handle) {
        assert!(self.held().larvals.remove(&handle.0));
    }

    fn attach_policy(&mut self, _: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal> {
        Ok((DeviceId(1), Handle(1000)))
    }

    fn detach_policy(&mut self, _: DeviceId, _: Handle) {}

    fn advance_esn(&mut self, _: DeviceId, _: Handle, _: u64) {}

    fn counts(&mut self, _: DeviceId, _: Handle) -> Option<DeviceSaCounters> {
        None
    }

    fn window(&mut self, _: DeviceId, _: Handle) -> Vec<u64> {
        Vec::new()
    }
}

/// `XFRM_DEV_OFFLOAD_FLAG_ACQ`: no kernel here has a device that does this.
#[test]
fn larval_state_is_on_the_policys_device() {
    let on_device = attribute(28, &[1, 0, 0, 0, 4, 0, 0, 0]);
    let words = Words { attributes: on_device.clone(), ..Words::tunnel() };
    let (mut stage, card) = (Stage::new(), Card::default());
    stage.database.set_devices(Box::new(card.clone()));
    assert_eq!(stage.ask(&words.request())[0].verdict(), Some((0, String::new())));
    stage.heard.clear();
    let counts = |stage: &Stage| {
        let refused = stage.database.snapshot().acquires.refused.len();
        (card.held().larvals.len(), stage.pending(), refused)
    };
    let acquires = |stage: &mut Stage| stage.acquire(&words, DESTINATION).len();
    assert_eq!((acquires(&mut stage), counts(&stage)), (1, (1, 1, 0)));
    let shown = stage.ask(&message(GET_SA, 0x301, &[]));
    assert!(shown[0].body.windows(on_device.len()).any(|some| some == on_device));
    assert_eq!((acquires(&mut stage), counts(&stage)), (0, (1, 1, 0)), "it is in progress");
    stage.expire(stage.now.plus(std::time::Duration::from_secs(31)));
    assert_eq!(counts(&stage), (0, 0, 0), "the device has it no more");
    // What the device refuses is not asked for, and for a second nor is the device.
    card.held().refuses = true;
    assert_eq!((acquires(&mut stage), counts(&stage)), (0, (0, 0, 1)));
    card.held().refuses = false;
    assert_eq!((acquires(&mut stage), counts(&stage)), (0, (0, 0, 1)));
    stage.now = stage.now.plus(std::time::Duration::from_secs(1));
    assert_eq!((acquires(&mut stage), counts(&stage)), (1, (1, 1, 0)));
    // It goes with the device (`xfrm_dev_state_flush`), and nobody is told.
    let now = stage.now;
    stage.database.hear(DeviceId(1), DeviceEvent::Down, now, &mut Vec::new());
    stage.server.publish_acquires(&mut stage.database);
    assert_eq!(counts(&stage), (0, 0, 0));
}

/// A key manager with a CPI would offer compression and add a state that cannot exist here.
#[test]
fn allocspi_refuses_ipcomp() {
    let mut request = allocate(1, 0x1000, 1);
    let protocol = request.len() - 232 + 76;
    assert_eq!(std::mem::replace(&mut request[protocol], 108), 50);
    let mut stage = Stage::prepared(&Words::tunnel());
    let answers = stage.ask(&request);
    assert_eq!(answers[0].verdict(), Some((93, "IPComp is not supported".to_owned())));
    assert_eq!(answers.len(), 1);
}
