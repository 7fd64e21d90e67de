//! The program behind `uxfrm web`.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use uxfrm_web::server::{Connections, Listener, serve};
use uxfrm_web::source::Gateway;
use uxfrm_web_options::WebOptions;

/// An HTTP API of the running gateway.
#[derive(Debug, Parser)]
#[command(name = "uxfrm-web", bin_name = "uxfrm web", version)]
struct Arguments {
    #[command(flatten)]
    options: WebOptions,
}

fn main() -> ExitCode {
    let Arguments { options } = Arguments::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uxfrm-web: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &WebOptions) -> anyhow::Result<()> {
    let unix = options.socket.as_ref().map(|path| {
        let _none = std::fs::remove_file(path);
        UnixListener::bind(path).with_context(|| format!("can't listen at {}", path.display()))
    });
    let unix = unix.transpose()?;
    let tcp = options.listen.map(TcpListener::bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let router = uxfrm_web::router(Arc::new(Gateway));
        let connections = Connections::default();
        let mut served = tokio::task::JoinSet::new();
        if let Some(unix) = unix {
            unix.set_nonblocking(true)?;
            let listener = Listener::Unix(tokio::net::UnixListener::from_std(unix)?);
            served.spawn(serve(listener, router.clone(), connections.clone()));
        }
        if let Some(tcp) = tcp {
            tcp.set_nonblocking(true)?;
            let listener = Listener::Tcp(tokio::net::TcpListener::from_std(tcp)?);
            served.spawn(serve(listener, router, connections));
        }
        served.join_all().await;
        Ok(())
    })
}
