//! A file of reservations is one gateway's at a time. Two that go by one file would each hand out what the other has reserved; one that
//! starts while another ends would know nothing of what that reserved last.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::journal::OWNER;

/// The right to a file of reservations, as long as this is there: the kernel takes it from whoever ends, in whatever way. What is locked lies
/// beside the file, which is replaced now and then.
#[derive(Debug)]
pub(crate) struct Claim {
    _locked: File,
}

impl Claim {
    /// Claims the file at `path`, which need not be there.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when it is another gateway's; the kernel's.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(OWNER);
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        let file = options.open(&lock).map_err(|error| {
            let reason = format!(
                "can't write {} beside it: {error}; `[xfrm] sequences` names another place",
                Path::new(&lock).display()
            );
            io::Error::new(error.kind(), reason)
        })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _locked: file }),
            Err(TryLockError::WouldBlock) => {
                let reason =
                    "another uxfrm that runs has it; `[xfrm] sequences` names one for each";
                Err(io::Error::new(io::ErrorKind::WouldBlock, reason))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_one_gateways_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["a.first", "a.second"].map(|name| directory.path().join(name));
        let first = Claim::take(&path).unwrap();
        let error = Claim::take(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("another uxfrm"), "{error}");
        Claim::take(&other).unwrap();
        let error = Claim::take(&directory.path().join("none/a")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let lock = format!("can't write {}/none/a.lock beside it: ", directory.path().display());
        assert!(error.to_string().starts_with(&lock), "{error}");
        assert!(error.to_string().contains("`[xfrm] sequences` names another place"), "{error}");
        drop(first);
        Claim::take(&path).unwrap();
    }
}
