//! A server that accepts every request and gives prepared answers, with the control socket's
//! greeting and netlink.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, send,
    socket,
};
use tempfile::TempDir;
use uxfrm_netlink::client::{NetlinkRequest, RawPolicy, RawSa};
use uxfrm_netlink::{MessageType, NetlinkFlags, NetlinkMessage, NetlinkMessages};
use zerocopy::FromZeros as _;

/// A running server and the requests that it received.
pub(crate) struct Server {
    directory: TempDir,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

const MAGIC: &[u8; 8] = b"uxfrm/1\n";
const ASK: u32 = 2;
const WELCOME: u32 = 3;
const ERROR: u16 = 2;
const DONE: u16 = 3;

impl Server {
    /// Answers dumps with `dump`, and other requests with a message of the right type.
    pub(crate) fn start(dump: Vec<NetlinkRequest>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let address = UnixAddr::new(&directory.path().join("socket")).unwrap();
        bind(socket.as_raw_fd(), &address).unwrap();
        listen(&socket, Backlog::new(64).unwrap()).unwrap();
        let listener = UnixListener::from(socket);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (sink, dump) = (Arc::clone(&heard), Arc::new(dump));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let client = Client {
                    socket: client.into(),
                    port: 0,
                    sink: Arc::clone(&sink),
                    dump: Arc::clone(&dump),
                };
                std::thread::spawn(move || client.serve());
            }
        });
        Self { directory, heard }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Takes the requests received so far, in order.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

struct Client {
    socket: OwnedFd,
    port: u32,
    sink: Arc<Mutex<Vec<Vec<u8>>>>,
    dump: Arc<Vec<NetlinkRequest>>,
}

impl Client {
    fn serve(mut self) {
        let mut buffer = vec![0; 1 << 18];
        loop {
            let len = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap_or(0);
            if len == 0 {
                return;
            }
            if buffer.starts_with(MAGIC) && len == 28 {
                self.greet(&mut buffer[..len]);
                continue;
            }
            for message in NetlinkMessages::of(&buffer[..len]) {
                self.sink.lock().unwrap().push(message.bytes.to_vec());
                self.answer(&message);
            }
        }
    }

    fn greet(&mut self, greeting: &mut [u8]) {
        self.port = u32::from_ne_bytes(greeting[12..16].try_into().unwrap());
        if u32::from_ne_bytes(greeting[8..12].try_into().unwrap()) == ASK {
            greeting[8..12].copy_from_slice(&WELCOME.to_ne_bytes());
            self.send(greeting);
        }
    }

    fn answer(&self, message: &NetlinkMessage<'_>) {
        let seq = message.header.seq;
        if message.flags().intersects(NetlinkFlags::DUMP) {
            self.dump.iter().for_each(|one| self.reply(one.bytes(), seq));
            self.reply(&header(DONE, &[0; 4]), seq);
            return;
        }
        let content = content(MessageType::from_number(message.header.kind).unwrap());
        if let Some(content) = content {
            self.reply(content.bytes(), seq);
        } else if message.flags().contains(NetlinkFlags::ACK) {
            let body = [&0_i32.to_ne_bytes()[..], &message.bytes[..16]].concat();
            self.reply(&header(ERROR, &body), seq);
        }
    }

    /// Sends a message with the request's number and the client's port.
    fn reply(&self, message: &[u8], seq: u32) {
        let mut bytes = message.to_vec();
        bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.port.to_ne_bytes());
        self.send(&bytes);
    }

    fn send(&self, datagram: &[u8]) {
        // The client may be gone.
        let _ = send(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL);
    }
}

/// The answer to a request for one object.
fn content(kind: MessageType) -> Option<NetlinkRequest> {
    let new = |kind| NetlinkRequest::new(kind, NetlinkFlags::empty());
    if matches!(kind, MessageType::GetSa | MessageType::AllocSpi) {
        return Some(new(MessageType::NewSa).body(&RawSa { family: 2, ..RawSa::new_zeroed() }));
    }
    if kind == MessageType::GetPolicy {
        return Some(new(MessageType::NewPolicy).body(&RawPolicy::new_zeroed()));
    }
    if kind == MessageType::GetDefault {
        // The kernel's messages end with padding.
        return Some(new(MessageType::GetDefault).body(&[1_u8, 2, 0, 0]));
    }
    let (answer, parts): (_, &[&[u8]]) = match kind == MessageType::GetSadInfo {
        true => (MessageType::NewSadInfo, &[&[7, 0, 0, 0], &[1; 8]]),
        false => (MessageType::NewSpdInfo, &[&[3; 24], &[1; 8], &[32, 16], &[128, 64]]),
    };
    if !matches!(kind, MessageType::GetSadInfo | MessageType::GetSpdInfo) {
        return None;
    }
    let mut info = new(answer).body(&0_u32);
    (1..).zip(parts).for_each(|(number, part)| info.parts(number, &[part]));
    Some(info)
}

/// A netlink control message.
fn header(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(body);
    bytes
}
