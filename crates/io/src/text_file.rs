//! Input files of users: configurations, batch files, profiles.

use std::{
    fs::{self, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

/// A batch file of a million policies has a fifth of it.
const LARGEST: u64 = 1 << 30;

/// Reads a whole regular file. Others are not opened: a FIFO would block, `/dev/zero` has no end,
/// and opening a device may have effects.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for a file that is not regular, or too large.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(&fs::metadata(path)?)?;
    // It may have been replaced since the check.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    check(&about)?;
    let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST { Err(too_large()) } else { Ok(bytes) }
}

/// Reads text.
///
/// # Errors
/// As [`read`]; [`io::ErrorKind::InvalidData`] for invalid UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}

fn check(about: &Metadata) -> io::Result<()> {
    let kind = about.file_type();
    let other = if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_dir() {
        "a directory"
    } else if about.len() > LARGEST {
        return Err(too_large());
    } else {
        return Ok(());
    };
    let message = format!("it is {other}; it has to be a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it has more than 1 GiB; split it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_file_is_read_through_symlink() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_to_string(&link).unwrap(), "text");
        fs::write(&file, [0xff]).unwrap();
        assert_eq!(read_to_string(&link).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn poller_ignores_removed_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let told = |path: &Path| read(path).unwrap_err().to_string();
        assert_eq!(told(&fifo), "it is a FIFO; it has to be a regular file");
        assert!(told(Path::new("/dev/zero")).contains("a device"));
        assert!(told(directory.path()).contains("a directory"));
    }

    #[test]
    fn oversized_text_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::File::create(&file).unwrap().set_len(LARGEST + 1).unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
