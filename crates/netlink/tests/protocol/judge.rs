//! The machine's own kernel as the judge of look-ups: random policies go to both by the same bytes, and real datagrams over `lo` tell
//! which policy decided there: one that blocks drops them, on the way out or on the way in. Needs root and a kernel with XFRM policies; no ESP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use uxfrm_engine::{Action, Direction, FlowKey, Lookup};

use crate::kernel::{Kernel, against_the_kernel};
use crate::stage::{Stage, attribute, message};

const SETS: u32 = 2000;
const QUERIES: u32 = 3;
const NEW_POLICY: u16 = 0x13;
const FLUSH_POLICIES: u16 = 0x1d;

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// One of few addresses of this host, so that policies and packets meet.
    fn address(&mut self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.pick(&[1, 2]), self.pick(&[0, 1]), self.pick(&[1, 2, 129]))
    }

    fn port(&mut self) -> u16 {
        self.pick(&[5001, 5002, 5017, 6001])
    }

    /// `struct xfrm_userpolicy_info`.
    fn policy(&mut self) -> Vec<u8> {
        let mut info = vec![0; 168];
        info[0..4].copy_from_slice(&self.address().octets());
        info[16..20].copy_from_slice(&self.address().octets());
        for at in [32, 36] {
            let mask = self.pick(&[0, 0, u16::MAX, 0xfff0]);
            info[at..at + 2].copy_from_slice(&(self.port() & mask).to_be_bytes());
            info[at + 2..at + 4].copy_from_slice(&mask.to_be_bytes());
        }
        info[40] = 2;
        info[42] = self.pick(&[0, 8, 16, 24, 25, 31, 32, 32]);
        info[43] = self.pick(&[0, 0, 8, 16, 24, 32]);
        info[44] = self.pick(&[0, 17, 17, 6]);
        info[152] = self.pick(&[1, 2, 3]);
        info[160] = self.pick(&[0, 1]);
        info[161] = self.pick(&[0, 1]);
        info
    }
}

/// Lets policies apply to `lo`, and brings it up.
fn open_loopback() {
    for switch in ["disable_xfrm", "disable_policy"] {
        for interface in ["lo", "all"] {
            let path = format!("/proc/sys/net/ipv4/conf/{interface}/{switch}");
            std::fs::write(path, "0").unwrap();
        }
    }
    let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
    socket.bind_auto().unwrap();
    // RTM_NEWLINK of the first interface, with IFF_UP to be set.
    let up = [[0_u32, 1, 1, 1]].concat().into_iter().flat_map(u32::to_ne_bytes);
    let request = message(16, 5, &up.collect::<Vec<_>>());
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).unwrap();
}

/// Whether the kernel lets a datagram with this number through.
fn arrives(from: SocketAddrV4, to: SocketAddrV4, number: u32, patience: Duration) -> bool {
    let receiver = UdpSocket::bind(to).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let sender = UdpSocket::bind(from).unwrap();
    match sender.send_to(&number.to_ne_bytes(), to) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return false,
        Err(error) => panic!("{from} to {to}: {error}"),
    }
    let begun = Instant::now();
    let mut bytes = [0; 4];
    loop {
        match receiver.recv(&mut bytes) {
            Ok(_) => return bytes == number.to_ne_bytes(),
            Err(_) if begun.elapsed() < patience => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
}

/// What our look-up says of the same datagram.
fn passes(stage: &Stage, from: SocketAddrV4, to: SocketAddrV4) -> bool {
    let flow = FlowKey {
        source: (*from.ip()).into(),
        destination: (*to.ip()).into(),
        protocol: 17,
        source_port: from.port(),
        destination_port: to.port(),
        mark: 0,
        if_id: 0,
        ifindex: 0,
    };
    let snapshot = stage.database.snapshot();
    [Direction::Out, Direction::In].into_iter().all(|direction| {
        let action = match snapshot.spd.lookup(direction, &flow) {
            Lookup::Policy(entry) => entry.policy().action,
            Lookup::Default(action) => action,
        };
        action == Action::Allow
    })
}

/// Gives both the same policies.
fn set_up(kernel: &Kernel, stage: &mut Stage, dice: &mut Dice) {
    let flush = message(FLUSH_POLICIES, 5, &attribute(16, &[0; 6]));
    kernel.ask(&flush);
    stage.ask(&flush);
    let most = dice.pick(&[2, 12, 40]);
    for _ in 0..1 + dice.below(most) {
        let add = message(NEW_POLICY, 5, &dice.policy());
        let (theirs, ours) = (kernel.ask(&add), stage.ask(&add));
        let verdict = |answers: &[crate::stage::Answer]| {
            answers.first().and_then(crate::stage::Answer::verdict).map(|(errno, _)| errno)
        };
        assert_eq!(verdict(&ours), verdict(&theirs));
    }
}

#[test]
fn the_same_policy_decides_over_two_thousand_sets() {
    against_the_kernel(|kernel| {
        open_loopback();
        let (mut stage, mut dice) = (Stage::new(), Dice(4));
        let mut passed = 0;
        for number in 0..SETS {
            set_up(kernel, &mut stage, &mut dice);
            for query in 0..QUERIES {
                let from = SocketAddrV4::new(dice.address(), dice.port());
                let to = SocketAddrV4::new(dice.address(), 1 + dice.port());
                // The policies' ports are the same numbers, under masks of twelve bits too.
                let to = SocketAddrV4::new(*to.ip(), to.port() - u16::from(query > 0));
                if from == to {
                    continue;
                }
                let ours = passes(&stage, from, to);
                // What should arrive is waited for; what should not is there at once if it comes.
                let patience = Duration::from_millis(if ours { 2000 } else { 0 });
                let theirs = arrives(from, to, number, patience);
                assert_eq!(ours, theirs, "set {number}: {from} to {to}; ours, the kernel's");
                passed += u32::from(ours);
            }
        }
        let share = passed * 100 / (SETS * QUERIES);
        assert!((20..=80).contains(&share), "{share} of a hundred passed: too one-sided a test");
    });
}
