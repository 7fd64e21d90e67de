//! A supervisor with processes that only sleep: who is the gateway, whatever they say and whenever
//! they end.

use nix::sys::signal::SigSet;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::*;

/// A process, and its end of the link.
fn process() -> (Gateway, FdChannel) {
    let (ours, theirs) = FdChannel::pair().unwrap();
    ours.set_timeout(Duration::from_secs(60)).unwrap();
    theirs.set_timeout(Duration::from_secs(60)).unwrap();
    // Whatever this test's own parent ignores, as `nohup` does.
    let process =
        Command::new("env").args(["--default-signal=HUP", "sleep", "1000"]).spawn().unwrap();
    let name = format!("/proc/{}/comm", process.id());
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        std::thread::sleep(Duration::from_millis(1));
    }
    (Gateway { process, link: ours }, theirs)
}

/// A gateway with a successor under way, and the ends of both.
fn upgrading() -> (Supervision, FdChannel, FdChannel) {
    let ((current, predecessor), (gateway, successor)) = (process(), process());
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let all = Supervision {
        launch: Launch {
            config: PathBuf::from("gateway.toml"),
            until_stdin_ends: false,
            log: None,
        },
        signals: SignalFd::with_flags(&SigSet::empty(), flags).unwrap(),
        current,
        successor: Some(Successor { gateway, given_up: false }),
        leaving: Vec::new(),
        hung_up: false,
        untrusted: DeclaredPaths::default(),
        reads_stdin: false,
        ends_by: None,
    };
    (all, predecessor, successor)
}

/// Reaps until nothing is left of a successor that has been killed.
fn reap_successor(all: &mut Supervision) {
    while all.successor.is_some() {
        assert!(all.reap().unwrap().is_none(), "the gateway runs on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[test]
fn successor_continues_after_predecessor_is_killed() {
    let (mut all, predecessor, successor) = upgrading();
    let asking = all.successor.as_ref().unwrap().gateway.process.id();
    Report::TookOver.send(&successor).unwrap();
    all.hear();
    assert!(matches!(Order::receive(&successor).unwrap(), Some(Order::GoOn)));
    assert_eq!(all.current.process.id(), asking);
    assert_eq!(all.leaving[0].process.wait().unwrap().signal(), Some(9));
    drop(all);
    assert!(Order::receive(&predecessor).unwrap().is_none(), "it never hears that it may go on");
}

#[test]
fn abandoned_successor_is_not_let_in() {
    let (mut all, predecessor, successor) = upgrading();
    let gateway = all.current.process.id();
    Report::Abandon.send(&predecessor).unwrap();
    Report::TookOver.send(&successor).unwrap();
    all.hear();
    assert_eq!(all.current.process.id(), gateway);
    reap_successor(&mut all);
    assert!(matches!(Order::receive(&predecessor).unwrap(), Some(Order::Ended)));
    drop(all);
    assert!(Order::receive(&successor).unwrap().is_none(), "it is never told to go on");
}

#[test]
fn successor_ended_before_heard_is_ignored() {
    let (mut all, predecessor, successor) = upgrading();
    let gateway = all.current.process.id();
    Report::TookOver.send(&successor).unwrap();
    all.successor.as_mut().unwrap().gateway.process.kill().unwrap();
    reap_successor(&mut all);
    all.hear();
    assert_eq!(all.current.process.id(), gateway);
    assert!(matches!(Order::receive(&predecessor).unwrap(), Some(Order::Ended)));
}

#[test]
fn successor_outlives_ending_predecessor() {
    let (mut all, _predecessor, successor) = upgrading();
    let asking = all.successor.as_ref().unwrap().gateway.process.id();
    all.current.process.kill().unwrap();
    all.current.process.wait().unwrap();
    Report::TookOver.send(&successor).unwrap();
    assert!(all.reap().unwrap().is_none());
    assert_eq!(all.current.process.id(), asking);
}

#[test]
fn sighup_during_upgrade_reaches_resulting_gateway() {
    let (mut all, _predecessor, successor) = upgrading();
    all.pass_on(Signal::SIGHUP as i32);
    Report::TookOver.send(&successor).unwrap();
    all.hear();
    assert_eq!(all.current.process.wait().unwrap().signal(), Some(Signal::SIGHUP as i32));
}

#[test]
fn paths_declared_by_either_process_are_untrusted() {
    let (mut all, predecessor, successor) = upgrading();
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Report::Writes(one.path().to_owned()).send(&predecessor).unwrap();
    Report::Writes(other.path().to_owned()).send(&successor).unwrap();
    all.hear();
    for directory in [one.path(), other.path()] {
        let program = directory.join("uxfrm");
        std::fs::write(&program, "").unwrap();
        let why = all.untrusted.open_other(&program).unwrap_err().to_string();
        assert!(why.contains("the gateway itself may write to"), "{why}");
    }
}

#[test]
fn gateway_that_hangs_at_end_is_killed() {
    let (mut all, _predecessor, _successor) = upgrading();
    send(&all.current, Signal::SIGSTOP);
    // A process that has not stopped yet takes SIGTERM first, which has the lower number.
    let gateway = Id::Pid(Pid::from_raw(all.current.process.id().cast_signed()));
    waitid(gateway, WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT).unwrap();
    all.pass_on(Signal::SIGTERM as i32);
    let by = all.ends_by.unwrap();
    all.pass_on(Signal::SIGTERM as i32);
    assert_eq!(all.ends_by, Some(by), "who asks again does not grant more");
    all.insist();
    assert!(all.reap().unwrap().is_none(), "it has its time");
    all.ends_by = Some(Instant::now());
    all.insist();
    assert_eq!(all.current.process.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn gateway_notifications_are_filtered() {
    let said = "READY=1\nRELOADING=1\nMONOTONIC_USEC=12345\nSTOPPING=1";
    assert_eq!(allowed(said.as_bytes()), said);
    let broken_in = b"MAINPID=4242\nFDSTOREREMOVE=1\nFDNAME=x\nNOTIFYACCESS=all";
    assert_eq!(allowed(broken_in), "");
    let among = b"STOPPING=1\nMAINPID=1\nREADY=1\rMAINPID=1\nMONOTONIC_USEC=1\0MAINPID=1\nREADY=1";
    assert_eq!(allowed(among), "STOPPING=1\nREADY=1");
    for strange in ["READY=2", "READY", "=1", "MONOTONIC_USEC=-1", "WATCHDOG=trigger", "BARRIER=1"]
    {
        assert_eq!(allowed(strange.as_bytes()), "", "{strange}");
    }
    assert_eq!(allowed(b"READY=1\n\xff"), "");
    assert!(allowed("READY=1\n".repeat(1000).as_bytes()).len() <= LONGEST);
}

#[test]
fn gateway_declaring_too_many_paths_starts_nothing() {
    let (mut all, predecessor, _successor) = upgrading();
    for number in 0..100 {
        Report::Writes(PathBuf::from(number.to_string())).send(&predecessor).unwrap();
        all.hear();
    }
    all.successor = None;
    let why = all.try_succeed(Path::new("/bin/true")).unwrap_err().to_string();
    assert!(why.contains("restart"), "{why}");
}
