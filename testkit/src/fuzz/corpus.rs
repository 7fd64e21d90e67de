//! The committed inputs of a fuzz target: `fuzz/corpus/TARGET/*`.

use std::path::PathBuf;
use std::{fs, panic};

/// The inputs of one target.
#[derive(Clone, Debug)]
pub struct Corpus(PathBuf);

impl Corpus {
    /// The corpus of a target.
    #[must_use]
    pub fn of(target: &str) -> Self {
        Self(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus")).join(target))
    }

    /// Every input by its file's name, in order.
    ///
    /// # Panics
    /// When the directory is missing or empty, or a file can't be read.
    #[must_use]
    pub fn inputs(&self) -> Vec<(String, Vec<u8>)> {
        let shown = self.0.display();
        let entries = fs::read_dir(&self.0).unwrap_or_else(|error| panic!("{shown}: {error}"));
        let paths = entries.map(|entry| entry.expect("a directory entry").path());
        let mut inputs: Vec<_> = paths
            .map(|path| {
                let name = path.file_name().expect("a file in a directory").display().to_string();
                (name, fs::read(&path).unwrap_or_else(|error| panic!("{shown}: {error}")))
            })
            .collect();
        inputs.sort_unstable();
        assert!(!inputs.is_empty(), "{shown} is empty: the corpus was not checked out");
        inputs
    }

    /// Adds an input.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn add(&self, name: &str, input: &[u8]) {
        fs::create_dir_all(&self.0).expect("the corpus directory can be made");
        fs::write(self.0.join(name), input).expect("an input can be written");
    }
}

/// Runs a target over its whole corpus.
///
/// # Panics
/// If the target does, after naming the file; if the corpus is empty.
pub fn replay(target: &str, body: fn(&[u8])) {
    for (name, input) in Corpus::of(target).inputs() {
        if let Err(panicked) = panic::catch_unwind(|| body(&input)) {
            eprintln!("fuzz/corpus/{target}/{name} fails");
            panic::resume_unwind(panicked);
        }
    }
}
