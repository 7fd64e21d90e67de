//! The program behind a command's name, and whether a library can be preloaded into it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// The default of `PATH`.
const USUAL_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The most nested script interpreters (`fs/exec.c`).
const MOST_SCRIPTS: usize = 4;

/// Bits of a mode: set-user-id, set-group-id.
const SET_ID: u32 = 0o6000;

/// A program that takes a preload library.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    binary: PathBuf,
    loader: PathBuf,
}

impl Program {
    /// Finds a program as a shell does, and inspects its file.
    ///
    /// # Errors
    /// If there is none, or it is static, set-user-id or of another architecture.
    pub(super) fn find(name: &OsStr) -> anyhow::Result<Self> {
        let path = locate(name)?;
        let binary = interpreter(&path)?;
        let loader = loader(&binary).with_context(|| binary.display().to_string())?;
        Ok(Self { path, binary, loader })
    }

    /// The file to run.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file, or its interpreter if it is a script.
    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// The dynamic loader that the binary asks for.
    pub(super) fn loader(&self) -> &Path {
        &self.loader
    }
}

fn locate(name: &OsStr) -> anyhow::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(USUAL_PATH));
    let found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found
        .into_iter()
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        .with_context(|| format!("no program {} in PATH", name.display()))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The binary that runs a file: itself, or the interpreter of its `#!` line.
fn interpreter(path: &Path) -> anyhow::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..=MOST_SCRIPTS {
        let mut start = Vec::new();
        let file = File::open(&path).with_context(|| format!("can't read {}", path.display()))?;
        file.take(256).read_to_end(&mut start)?;
        let Some(line) = start.strip_prefix(b"#!") else { return Ok(path) };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        path = PathBuf::from(OsString::from_vec(word.to_vec()));
    }
    bail!("{}: too many scripts that interpret each other", path.display())
}

/// The dynamic loader of an ELF file.
fn loader(binary: &Path) -> anyhow::Result<PathBuf> {
    let mut file = File::open(binary)?;
    let mode = file.metadata()?.permissions().mode();
    ensure!(
        mode & SET_ID == 0,
        "a set-user-id program takes no preload library: it would reach the kernel's XFRM"
    );
    let header = read_at::<64>(&mut file, 0).context("not a program")?;
    ensure!(header[..4] == *b"\x7fELF", "neither an ELF program nor a script with `#!`");
    ensure!(
        header[4..6] == own_header()?[4..6] && header[18..20] == own_header()?[18..20],
        "a program of another architecture takes no preload library of this one: it would reach the kernel's XFRM"
    );
    let (offset, entries) = (long(&header, 32), short(&header, 56));
    for index in 0..u64::from(entries) {
        let entry = read_at::<56>(&mut file, offset + index * u64::from(short(&header, 54)))?;
        if entry[..4] == PT_INTERP.to_ne_bytes() {
            return path_at(&mut file, long(&entry, 8), long(&entry, 32));
        }
    }
    bail!("a static program takes no preload library: it would reach the kernel's XFRM")
}

/// The program header that names the loader.
const PT_INTERP: u32 = 3;

/// The ELF header of this program: a preload library needs the same class, byte order and machine.
fn own_header() -> anyhow::Result<[u8; 64]> {
    read_at(&mut File::open("/proc/self/exe").context("is /proc mounted?")?, 0)
}

fn path_at(file: &mut File, offset: u64, length: u64) -> anyhow::Result<PathBuf> {
    const PATH_MAX: u64 = 4096;
    ensure!((2..=PATH_MAX).contains(&length), "a broken program: its loader has no name");
    file.seek(SeekFrom::Start(offset))?;
    let mut path = Vec::new();
    file.take(length).read_to_end(&mut path)?;
    path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
    Ok(PathBuf::from(OsString::from_vec(path)))
}

fn read_at<const N: usize>(file: &mut File, offset: u64) -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mode: u32, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    fn complaint(path: &Path) -> String {
        format!("{:#}", Program::find(path.as_os_str()).unwrap_err())
    }

    #[test]
    fn dynamic_program_and_its_script_are_found() {
        let own = std::env::current_exe().unwrap();
        let program = Program::find(own.as_os_str()).unwrap();
        assert_eq!((program.path(), program.binary()), (&*own, &*own));
        assert!(program.loader().is_file());
        let script = format!("#! {} -x\n", own.display());
        if script.len() < 200 {
            let (_directory, path) = written(0o755, script.as_bytes());
            let program = Program::find(path.as_os_str()).unwrap();
            assert_eq!((program.path(), program.binary()), (&*path, &*own));
        }
    }

    #[test]
    fn programs_that_cannot_be_preloaded_are_refused() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let (_directory, path) = written(0o4755, &own);
        assert!(complaint(&path).contains("set-user-id"), "{}", complaint(&path));
        let mut foreign = own[..64].to_vec();
        foreign[18] ^= 1;
        let (_directory, path) = written(0o755, &foreign);
        assert!(complaint(&path).contains("another architecture"));
        let mut headless = own[..64].to_vec();
        headless[56..58].fill(0);
        let (_directory, path) = written(0o755, &headless);
        assert!(complaint(&path).contains("a static program"));
        for broken in [&own[..64], b"\x7fELF", b"", b"echo"] {
            let (_directory, path) = written(0o755, broken);
            complaint(&path);
        }
        let (_directory, path) = written(0o755, b"");
        fs::write(&path, format!("#!{}", path.display())).unwrap();
        assert!(complaint(&path).contains("too many scripts"));
        assert!(complaint(Path::new("no-such-program")).contains("in PATH"));
    }
}
