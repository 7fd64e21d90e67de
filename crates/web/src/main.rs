//! The program behind `uxfrm web`.
//!
//! Sockets and the token are had first, then all privileges go, then threads begin.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_web::access::{Access, AccessToken, KnownHosts};
use uxfrm_web::privileges;
use uxfrm_web::server::{Listener, serve};
use uxfrm_web::sockets::OpenSockets;
use uxfrm_web::source::Gateway;
use uxfrm_web_options::WebOptions;

/// Threads that wait for the gateway or write JSON.
const WAITING_THREADS: usize = 8;

/// Serve what the running gateway tells about itself by HTTP.
#[derive(Debug, Parser)]
#[command(name = "uxfrm-web", bin_name = "uxfrm web", version)]
struct Arguments {
    #[command(flatten)]
    options: WebOptions,
}

fn main() -> ExitCode {
    let Arguments { options } = Arguments::parse();
    start_log();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error on stderr itself can't be reported.
            let _closed = writeln!(io::stderr(), "uxfrm-web: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to stderr. The journal has times of its own.
fn start_log() {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(log_filter())
        .with_target(false)
        .with_ansi(io::stderr().is_terminal());
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.without_time().init(),
        None => log.init(),
    }
}

/// What `RUST_LOG` names; without, all that an operator has to know.
fn log_filter() -> EnvFilter {
    EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy()
}

fn run(options: &WebOptions) -> anyhow::Result<()> {
    let sockets = OpenSockets::open(options)?;
    let token = options.token_file.as_deref().map(AccessToken::read).transpose()?.map(Arc::new);
    // Before files are out of reach.
    let subordinates = SubordinateUsers::read();
    let _confinement = privileges::give_up(options.user.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(WAITING_THREADS)
        .build()?;
    runtime.block_on(listen(options, sockets, token, &subordinates))
}

async fn listen(
    options: &WebOptions,
    sockets: OpenSockets,
    token: Option<Arc<AccessToken>>,
    subordinates: &SubordinateUsers,
) -> anyhow::Result<()> {
    let routes = uxfrm_web::router(Arc::new(Gateway));
    let mut served = JoinSet::new();
    let mut add = |listener, hosts| {
        let router = uxfrm_web::guarded(routes.clone(), &Access::new(hosts, token.clone()));
        served.spawn(serve(listener, router, subordinates.clone()));
    };
    for unix in sockets.unix {
        let address = unix.local_addr()?;
        match address.as_pathname() {
            Some(path) => tracing::info!("listening at {}", path.display()),
            None => tracing::info!("listening at {address:?}"),
        }
        let listener = Listener::Unix(tokio::net::UnixListener::from_std(unix)?);
        add(listener, KnownHosts::of_unix_socket(&options.host));
    }
    for tcp in sockets.tcp {
        let address = tcp.local_addr()?;
        tracing::info!("listening at http://{address}/");
        let hosts = KnownHosts::of_address(address, &options.host);
        add(Listener::Tcp(tokio::net::TcpListener::from_std(tcp)?), hosts);
    }
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _not_under_systemd = sd_notify::notify(&[NotifyState::Ready]);
    tokio::select! {
        _ended = end.recv() => {}
        _ended = interrupt.recv() => {}
    }
    Ok(())
}
