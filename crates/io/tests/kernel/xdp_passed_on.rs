//! Rings and programs of one process are another's.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uxfrm_io::napi::NapiDeferral;
use uxfrm_io::xdp::{
    FrameSelection, Program, ProgramOptions, ProgramParts, Queue, QueueParts, XdpError, XdpVerdict,
};
use uxfrm_io::{FramePort, Frames, Namespace};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader};
use uxfrm_packet::{Batch, Pool};
use zerocopy::IntoBytes;

use crate::xdp::{connected, esp, esp_of, number, options};
use crate::{in_namespace, not_run};

const ROUNDS: u32 = 60;
const AT_ONCE: u32 = 400;

fn copy(descriptor: BorrowedFd<'_>) -> OwnedFd {
    descriptor.try_clone_to_owned().unwrap()
}

fn program_of(before: &Program, options: ProgramOptions) -> Arc<Program> {
    let ProgramParts { at_device, sockets, own } = before.parts();
    let [at_device, sockets, own] = [at_device, sockets, own].map(copy);
    Program::of_parts(options, ProgramParts { at_device, sockets, own }).unwrap()
}

fn queue_of(before: &Queue, program: &Arc<Program>) -> Result<Queue, XdpError> {
    let QueueParts { socket, sender, memory } = before.parts();
    let [socket, sender, memory] = [socket, sender, memory].map(copy);
    Queue::of_parts(program, QueueParts { socket, sender, memory })
}

/// As a successor does: it is built beside the queue in use, which then rests, and goes on.
fn pass_on(queue: &mut Queue, program: &mut Arc<Program>, options: &ProgramOptions) {
    let next = program_of(program, options.clone());
    let mut taken = queue_of(queue, &next).unwrap();
    FramePort::save_state(queue);
    FramePort::restore_state(&mut taken).unwrap();
    next.put_in_place().unwrap();
    (*queue, *program) = (taken, next);
}

/// Many more frames pass than there are, while some wait in every ring: one that a hand-over lost
/// would be missed.
#[test]
fn handed_over_rings_lose_and_duplicate_no_frame() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let (ours, theirs) = (options(near), options(there));
        let mut program = Program::attach(ours.clone()).unwrap();
        let mut sender = Queue::open(&program, 0).unwrap();
        let (mut their_program, mut receiver, gathering) = far
            .enter(|| {
                let program = Program::attach(theirs.clone()).unwrap();
                let receiver = Queue::open(&program, 0).unwrap();
                (program, receiver, NapiDeferral::start(there.0, Duration::from_millis(2)))
            })
            .unwrap();
        if gathering.is_err() {
            return not_run("a kernel before Linux 6.13: nothing waits in the sending ring");
        }
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames, mut batch) = (Pool::new(), Frames::new(), Batch::new());
        let (mut kept, mut came) = (0, Vec::new());
        for round in 0..ROUNDS {
            for number in round * AT_ONCE..(round + 1) * AT_ONCE {
                frames.push(header, esp_of(number, 700));
            }
            let sent = sender.transmit(&mut frames, &mut pool);
            assert_eq!((sent.packets, sent.refused.packets()), (AT_ONCE.into(), 0), "{round}");
            kept += u32::from(sender.has_backlog());
            pass_on(&mut sender, &mut program, &ours);
            let deadline = Instant::now() + Duration::from_secs(10);
            while came.len() < ((round + 1) * AT_ONCE) as usize && Instant::now() < deadline {
                let _sent = sender.transmit(&mut frames, &mut pool);
                FramePort::receive(&mut receiver, &mut pool, &mut batch).unwrap();
                came.extend(batch.as_slice().iter().map(number));
                pool.give_all(&mut batch);
                if came.len() % 7 == 0 {
                    pass_on(&mut receiver, &mut their_program, &theirs);
                }
            }
            assert_eq!(came.len(), ((round + 1) * AT_ONCE) as usize);
        }
        assert!(kept > 0, "some waited in the sending ring");
        assert_eq!(came, (0..ROUNDS * AT_ONCE).collect::<Vec<_>>());
        assert_eq!((sender.lost(), receiver.lost()), (0, 0));
    });
}

/// One that was built beside it and came to nothing leaves the first as it was.
#[test]
fn unused_successor_leaves_queue_working() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let mut sender = Queue::open(&program, 0).unwrap();
        let mut receiver = far
            .enter(|| Queue::open(&Program::attach(options(there)).unwrap(), 0).unwrap())
            .unwrap();
        let header =
            EthernetHeader { destination: there.1, source: near.1, ether_type: EtherType::IPV4 };
        let (mut pool, mut frames, mut batch) = (Pool::new(), Frames::new(), Batch::new());
        for round in 0..200 {
            let next = program_of(&program, options(near));
            let mut unused = queue_of(&sender, &next).unwrap();
            FramePort::save_state(&mut sender);
            FramePort::restore_state(&mut unused).unwrap();
            drop((unused, next));
            (0..20).for_each(|number| frames.push(header, esp(number)));
            let sent = sender.transmit(&mut frames, &mut pool);
            assert_eq!((sent.packets, sent.refused.packets()), (20, 0), "{round}");
            let (mut came, deadline) = (0, Instant::now() + Duration::from_secs(10));
            while came < 20 && Instant::now() < deadline {
                came += FramePort::receive(&mut receiver, &mut pool, &mut batch).unwrap();
                pool.give_all(&mut batch);
            }
            assert_eq!(came, 20);
        }
    });
}

#[test]
fn replaced_xdp_program_has_only_its_own_host_addresses() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, there] = connected(&far);
        let own_esp = ProgramOptions { selection: FrameSelection::OwnEsp, ..options(near) };
        let before = Program::attach(own_esp.clone()).unwrap();
        let queue = Queue::open(&before, 0).unwrap();
        let [gone, stays] = ["192.0.2.2", "192.0.2.9"].map(|own| own.parse().unwrap());
        before.set_host_addresses(&[gone, stays]).unwrap();
        let next = program_of(&before, own_esp);
        next.set_host_addresses(&[stays]).unwrap();
        let _queue = queue_of(&queue, &next).unwrap();
        next.put_in_place().unwrap();
        drop((before, queue));
        let header =
            EthernetHeader { destination: near.1, source: there.1, ether_type: EtherType::IPV4 };
        let verdict = |last: u8| {
            let mut packet = esp(1);
            packet.bytes_mut()[19] = last;
            next.verdict(&[header.as_bytes(), packet.bytes()].concat()).unwrap()
        };
        assert_eq!((verdict(2), verdict(9)), (XdpVerdict::Kernel, XdpVerdict::Socket));
        assert!(Program::attach(options(near)).is_err(), "it is at the device");
    });
}

#[test]
fn umem_of_other_frame_size_is_refused() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let [near, _there] = connected(&far);
        let program = Program::attach(options(near)).unwrap();
        let queue = Queue::open(&program, 0).unwrap();
        let larger = program_of(&program, ProgramOptions { mtu: 3000, ..options(near) });
        let refused = queue_of(&queue, &larger).unwrap_err();
        assert!(matches!(refused, XdpError::MtuChanged(3000)), "{refused}");
    });
}
