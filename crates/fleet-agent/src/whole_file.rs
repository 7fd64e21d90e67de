//! Files that are written as a whole: the old text or the new one is there, whatever happens.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, fchown},
    path::Path,
};

use tempfile::NamedTempFile;

/// Writes a file. One that is there keeps its owner and mode; a new one is mode 0600.
///
/// # Errors
/// The file system's.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(new_beside(path, bytes)?, path)
}

/// The same, and it is on the disk afterwards, for which it waits.
///
/// # Errors
/// The file system's.
pub(crate) fn replace_on_disk(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = new_beside(path, bytes)?;
    file.as_file().sync_all()?;
    put(file, path)?;
    fs::File::open(directory(path))?.sync_all()
}

fn new_beside(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(directory(path))?;
    file.write_all(bytes)?;
    match fs::metadata(path) {
        Ok(before) => {
            fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
            file.as_file().set_permissions(before.permissions())?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(file)
}

fn put(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn mode_of_the_file_before_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        replace(&path, b"one").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"one".to_vec(), 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace_on_disk(&path, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"two".to_vec(), 0o640));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
