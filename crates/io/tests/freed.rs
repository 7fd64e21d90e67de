//! What was freed is given back to the kernel. Without a harness: other tests' threads would have
//! memory of their own meanwhile.

use uxfrm_io::heap::{release_free, resident};

const BLOCKS: usize = 1 << 19;

fn main() {
    if !cfg!(target_env = "gnu") {
        eprintln!("not run: no glibc");
        return;
    }
    let now = || resident().expect("procfs is mounted");
    let mut blocks: Vec<_> = (0..BLOCKS).map(|at| Box::new([at; 12])).collect();
    // The last one holds the end of the heap.
    let last = blocks.pop();
    let before = now();
    drop(blocks);
    release_free();
    let after = now();
    assert!(after + BLOCKS * 96 / 2 < before, "{before} bytes, then {after}");
    drop(last);
    eprintln!("what was freed is no longer there: ok");
}
