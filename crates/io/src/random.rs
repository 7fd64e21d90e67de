//! Random bytes from the kernel, for seeds and SPIs.

use std::io;

/// Fills `bytes` from the kernel's generator (`getrandom(2)`), waiting for it at boot until it is
/// seeded.
///
/// # Errors
/// The kernel's: only where the system call is not permitted.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the pointer and length are those of a live slice.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// A seed of 32 bytes.
///
/// # Errors
/// As [`fill`].
pub fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    fill(&mut seed)?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_differ() {
        assert_ne!(super::seed().unwrap(), super::seed().unwrap());
    }
}
