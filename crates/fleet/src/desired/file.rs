//! The file of `uxfrm fleet apply`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{DesiredTunnel, Lines};
use crate::names::{PoolName, TunnelName};

/// The pool of tunnels that name none.
const DEFAULT_POOL: &str = "default";

/// Most children of a tunnel.
const MOST_CHILDREN: usize = 1024;

/// What all gateways of a fleet are to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredFile {
    /// Its pools, with their tunnels.
    pub pools: BTreeMap<PoolName, DesiredPool>,
}

/// What the gateways of a pool are to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredPool {
    /// What each of them has.
    pub lines: Lines,
    /// Its tunnels.
    pub tunnels: BTreeMap<TunnelName, DesiredTunnel>,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is no such file.
    #[error("line {line}: {message}")]
    Form {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A tunnel is of a pool that is not there.
    #[error("tunnel `{0}`: there is no pool `{1}`; say [pools.{1}], or another `pool` there")]
    NoPool(TunnelName, PoolName),
    /// A tunnel has too many children.
    #[error("tunnel `{0}`: {1} children; at most {MOST_CHILDREN} are")]
    Children(TunnelName, usize),
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    pools: BTreeMap<PoolName, WrittenPool>,
    #[serde(default)]
    tunnels: BTreeMap<TunnelName, WrittenTunnel>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPool {
    #[serde(default)]
    lines: Lines,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTunnel {
    pool: Option<PoolName>,
    #[serde(default)]
    lines: Lines,
    #[serde(default)]
    children: Vec<Lines>,
}

impl DesiredFile {
    /// Reads it.
    ///
    /// # Errors
    /// Where it is no such file, with line and column; or a tunnel can't be.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let written: Written = toml::from_str(text).map_err(|error| form_error(text, &error))?;
        let pool = |pool: WrittenPool| DesiredPool { lines: pool.lines, ..DesiredPool::default() };
        let pools = written.pools.into_iter().map(|(name, written)| (name, pool(written)));
        let mut file = Self { pools: pools.collect() };
        written.tunnels.into_iter().try_for_each(|(name, written)| file.add(name, written))?;
        Ok(file)
    }

    fn add(&mut self, name: TunnelName, written: WrittenTunnel) -> Result<(), FileError> {
        let count = written.children.len();
        if count > MOST_CHILDREN {
            return Err(FileError::Children(name, count));
        }
        // One that names none has all in its lines.
        let children = if count == 0 { vec![Lines::default()] } else { written.children };
        let tunnel = DesiredTunnel { lines: written.lines, children };
        let pool = match written.pool {
            None => self.pools.entry(default_pool()).or_default(),
            Some(pool) => match self.pools.get_mut(&pool) {
                None => return Err(FileError::NoPool(name, pool)),
                Some(own) => own,
            },
        };
        pool.tunnels.insert(name, tunnel);
        Ok(())
    }
}

fn default_pool() -> PoolName {
    // A name, as a test says.
    #[expect(clippy::unwrap_used, reason = "a constant")]
    DEFAULT_POOL.parse().unwrap()
}

/// Where a file is wrong, and how. TOML's own error quotes the line and the value, which may have a
/// key.
fn form_error(text: &str, error: &toml::de::Error) -> FileError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    FileError::Form { line, message: without_values(error.message()) }
}

/// Without what stands between quotation marks.
fn without_values(message: &str) -> String {
    match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) => format!("{}…{}", &message[..first], &message[last + 1..]),
        (None, _) | (_, None) => message.to_owned(),
    }
}
