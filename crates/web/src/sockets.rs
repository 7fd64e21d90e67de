//! Sockets to listen on: those that systemd hands over (`LISTEN_FDS`), a Unix socket, a loopback
//! address. Opened before privileges are given up.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use listenfd::ListenFd;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod, umask};
use nix::unistd::{Gid, Group, getegid, setegid};
use uxfrm_web_options::WebOptions;

/// Where it listens, if no option says so.
const SOCKET: &str = "/run/uxfrm/web.sock";
/// For owner and group.
const MODE: Mode = Mode::from_bits_truncate(0o660);

/// Sockets that are open.
#[derive(Debug, Default)]
pub struct OpenSockets {
    /// Unix sockets.
    pub unix: Vec<UnixListener>,
    /// Loopback addresses.
    pub tcp: Vec<TcpListener>,
}

impl OpenSockets {
    /// Opens what the options name, and takes what systemd hands over.
    ///
    /// # Errors
    /// What can't be opened, or may not.
    pub fn open(options: &WebOptions) -> anyhow::Result<Self> {
        let mut sockets = Self::handed_over()?;
        let is_handed_over = !sockets.unix.is_empty() || !sockets.tcp.is_empty();
        sockets.tcp.extend(options.listen.map(bind_address).transpose()?);
        let path = match &options.socket {
            Some(path) => Some(path.clone()),
            None if is_handed_over || options.listen.is_some() => None,
            None => Some(PathBuf::from(SOCKET)),
        };
        let group = options.group.as_deref();
        sockets.unix.extend(path.map(|path| bind_path(&path, group)).transpose()?);
        let has_token = options.token_file.is_some();
        ensure!(
            sockets.tcp.is_empty() || has_token,
            "whoever is on this host reaches a TCP port: say --token-file FILE (openssl rand -hex 32 >FILE)"
        );
        for listener in &sockets.tcp {
            ensure_loopback(listener.local_addr()?)?;
            listener.set_nonblocking(true)?;
        }
        sockets.unix.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(sockets)
    }

    fn handed_over() -> anyhow::Result<Self> {
        let mut handed = ListenFd::from_env();
        let mut sockets = Self::default();
        for index in 0..handed.len() {
            if let Ok(Some(listener)) = handed.take_unix_listener(index) {
                sockets.unix.push(listener);
            } else if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
                sockets.tcp.push(listener);
            } else {
                bail!("systemd hands over a socket that is neither a Unix nor a TCP listener");
            }
        }
        Ok(sockets)
    }
}

fn ensure_loopback(address: SocketAddr) -> anyhow::Result<()> {
    ensure!(
        address.ip().is_loopback(),
        "{address} is no loopback address: listen on 127.0.0.1 or [::1], and put a proxy with TLS in front"
    );
    Ok(())
}

fn bind_address(address: SocketAddr) -> anyhow::Result<TcpListener> {
    ensure_loopback(address)?;
    let failed = || format!("can't listen on {address}");
    let listener = TcpListener::bind(address).with_context(failed)?;
    // Who finds the queue full asks again after a second, and the library's has 128 places.
    listen(&listener, Backlog::MAXCONN).with_context(failed)?;
    Ok(listener)
}

fn bind_path(path: &Path, group: Option<&str>) -> anyhow::Result<UnixListener> {
    let group = group.map(group_id).transpose()?;
    remove_stale(path)?;
    let own = getegid();
    if let Some(group) = group.filter(|group| *group != own) {
        setegid(group).context("only root gives the socket to another group than its own")?;
        let listener = listen_at(path);
        setegid(own).context("can't have the own group back")?;
        return listener.map_err(|error| explain(path, error));
    }
    listen_at(path).map_err(|error| explain(path, error))
}

/// A listener whose file has its mode and group from the first. Nothing is done by its name
/// afterwards: that may be another file's by then.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file has the socket's mode.
    fchmod(&socket, MODE)?;
    let address = UnixAddr::new(path)?;
    let masked = umask(Mode::empty());
    let bound = bind(socket.as_raw_fd(), &address);
    umask(masked);
    bound?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

fn explain(path: &Path, error: io::Error) -> anyhow::Error {
    let what = format!("can't listen at {}", path.display());
    let next = if error.kind() == io::ErrorKind::NotFound {
        ": its directory is missing (the package's tmpfiles make it)"
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        ": uxfrm-web.socket hands it over, root may open it, or name another by --socket PATH"
    } else {
        ""
    };
    anyhow::Error::new(error).context(what + next)
}

/// Removes the socket of one that has ended.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    ensure!(there.file_type().is_socket(), "{} is there, and no socket", path.display());
    ensure!(UnixStream::connect(path).is_err(), "another uxfrm-web listens at {}", path.display());
    fs::remove_file(path).with_context(|| format!("can't remove the old {}", path.display()))
}

fn group_id(name: &str) -> anyhow::Result<Gid> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(name).context("can't read /etc/group")?;
    group.map(|group| group.gid).with_context(|| format!("no group {name}: groupadd {name}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn options() -> WebOptions {
        WebOptions::default()
    }

    #[test]
    fn address_has_to_be_loopback_and_to_have_a_token() {
        let token = Some(PathBuf::from("/token"));
        for (address, token_file, says) in [
            ("0.0.0.0:0", token.clone(), "no loopback address"),
            ("192.0.2.1:0", token.clone(), "no loopback address"),
            ("[::]:0", token.clone(), "no loopback address"),
            ("127.0.0.1:0", None, "--token-file"),
        ] {
            let listen = Some(address.parse().unwrap());
            let error = OpenSockets::open(&WebOptions { listen, token_file, ..options() });
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{address}: {error}");
        }
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let open = OpenSockets::open(&WebOptions { listen, token_file: token, ..options() });
        let open = open.unwrap();
        assert_eq!((open.unix.len(), open.tcp.len()), (0, 1));
    }

    #[test]
    fn socket_is_its_groups_and_replaces_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.sock");
        let options = WebOptions { socket: Some(path.clone()), ..options() };
        let first = OpenSockets::open(&options).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
        let error = OpenSockets::open(&options).unwrap_err().to_string();
        assert!(error.contains("another uxfrm-web listens"), "{error}");
        drop(first);
        OpenSockets::open(&options).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "kept").unwrap();
        assert!(OpenSockets::open(&options).unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        let unknown = WebOptions { group: Some("no-such-group".to_owned()), ..options };
        assert!(OpenSockets::open(&unknown).unwrap_err().to_string().contains("groupadd"));
    }

    #[test]
    fn group_is_given_as_the_socket_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.sock");
        let own = getegid();
        let other = Gid::from_raw(own.as_raw() + 1);
        let open = |group: Gid| {
            let (socket, group) = (Some(path.clone()), Some(group.to_string()));
            OpenSockets::open(&WebOptions { socket, group, ..options() })
        };
        let open_to_own = open(own).unwrap();
        let about = fs::symlink_metadata(&path).unwrap();
        assert_eq!((about.gid(), about.mode() & 0o7777), (own.as_raw(), 0o660));
        drop(open_to_own);
        match open(other) {
            Ok(_open) => {
                let about = fs::symlink_metadata(&path).unwrap();
                assert_eq!((about.gid(), about.mode() & 0o7777), (other.as_raw(), 0o660));
                assert_eq!(getegid(), own, "had back");
            }
            Err(error) => {
                assert!(!nix::unistd::Uid::effective().is_root(), "{error:#}");
                assert!(error.to_string().contains("only root"), "{error:#}");
            }
        }
    }

    #[test]
    fn link_in_the_sockets_place_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("web.sock"), directory.path().join("victim"));
        fs::write(&victim, "kept").unwrap();
        let before = fs::metadata(&victim).unwrap().mode();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let error = OpenSockets::open(&WebOptions { socket: Some(path.clone()), ..options() });
        assert!(error.unwrap_err().to_string().contains("no socket"));
        // The link comes between the look and the socket.
        assert_eq!(listen_at(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::metadata(&victim).unwrap().mode(), before);
    }
}
