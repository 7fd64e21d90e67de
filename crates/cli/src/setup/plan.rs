//! What `uxfrm setup` is to do: files to write, lines to add, links to make, and then commands.

use std::path::PathBuf;

use zeroize::Zeroizing;

/// Steps in their order. Nothing of it has been done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Units that are restarted after it and after its undoing, where they run.
    pub(super) units: Vec<String>,
    /// AppArmor profiles that are loaded anew, by file.
    pub(super) profiles: Vec<PathBuf>,
    /// Whether the gateway is started.
    pub(super) gateway: GatewayStart,
    /// What a reader has to know or do beside it.
    pub(super) notes: Vec<String>,
}

/// Whether `uxfrm.service` is started at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GatewayStart {
    /// The reader does that.
    #[default]
    Later,
    /// Now, before the IKE daemon.
    Now,
}

/// One thing to do. Paths are the host's own, absolute.
#[derive(Debug)]
pub(super) enum Step {
    /// A file of our own.
    File(NewFile),
    /// Lines at the end of a file that may be there and others'.
    Lines {
        /// The file.
        path: PathBuf,
        /// They end in a newline.
        text: String,
    },
    /// A symbolic link.
    Link {
        /// Its own place.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
}

/// A file that is not there yet.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) path: PathBuf,
    /// May hold keys.
    pub(super) text: Zeroizing<String>,
    pub(super) access: Access,
}

/// Who may read a file that root writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// All users: 0644.
    All,
    /// The group `uxfrm`: 0640.
    Gateway,
    /// Root: 0600.
    Root,
}

impl Access {
    /// The file's mode.
    pub(super) const fn mode(self) -> u32 {
        match self {
            Self::All => 0o644,
            Self::Gateway => 0o640,
            Self::Root => 0o600,
        }
    }

    /// The mode of a directory that is made for it.
    pub(super) const fn directory_mode(self) -> u32 {
        match self {
            Self::All => 0o755,
            Self::Gateway => 0o750,
            Self::Root => 0o700,
        }
    }
}

impl Step {
    pub(super) fn file(path: &str, text: impl Into<String>, access: Access) -> Self {
        let text = Zeroizing::new(text.into());
        Self::File(NewFile { path: PathBuf::from(path), text, access })
    }
}
