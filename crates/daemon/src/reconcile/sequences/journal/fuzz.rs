//! What the fuzzer of `fuzz/` runs: whatever lies where a journal should be. Built for tests and
//! fuzzers only.

use super::{VERSION, parse, read, sealed};

/// Decodes a journal.
///
/// # Panics
/// When the decoder does, or what it reads does not come back when it is written.
pub fn decode(bytes: &[u8]) {
    let Ok(contents) = read(bytes) else { return };
    assert!(contents.has_text || contents.records.is_empty(), "zeros say nothing");
    let mut group = format!("uxfrm-sequences {VERSION} {:032x}\n", 7);
    for record in &contents.records {
        let line = record.to_string();
        assert_eq!(parse(line.trim_end()), Some(*record), "{line}");
        group.push_str(&line);
    }
    let again = read(sealed(&group, 1).as_bytes()).expect("a journal of this version");
    assert_eq!((again.records, again.damaged), (contents.records, 0));
    assert_eq!(again.identity.map(|identity| (identity.id, identity.generation)), Some((7, 1)));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// The corpus as it is, cut off anywhere, and with each byte damaged.
    #[test]
    fn journal_fuzz_corpus_decodes() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sequences");
        let mut files = 0;
        for file in fs::read_dir(corpus).unwrap() {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            decode(&bytes);
            (0..bytes.len()).for_each(|length| decode(&bytes[..length]));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] = damaged[at].wrapping_add(1);
                decode(&damaged);
            }
            files += 1;
        }
        assert!(files > 0, "there is no corpus");
    }
}
