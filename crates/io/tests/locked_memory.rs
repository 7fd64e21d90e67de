//! Locked memory, in a process of its own: it is locked for all tests of a process.

use uxfrm_io::{heap, secret_memory};

fn locked_kilobytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Without a capability that counts none is locked, and the caller is told.
#[test]
fn locked_memory_can_still_be_freed() {
    const BLOCKS: usize = 1 << 19;
    let Ok(_hold) = secret_memory::lock_memory() else {
        assert_eq!(locked_kilobytes(), Some(0));
        return;
    };
    assert!(locked_kilobytes() > Some(0));
    let mut blocks: Vec<_> = (0..BLOCKS).map(|at| Box::new([at; 12])).collect();
    // The last one holds the end of the heap.
    let last = blocks.pop();
    let before = heap::resident().unwrap();
    drop(blocks);
    secret_memory::unlocked(heap::release_free).unwrap();
    assert!(locked_kilobytes() > Some(0), "it is locked again");
    let after = heap::resident().unwrap();
    assert!(after + BLOCKS * 96 / 2 < before, "{before} bytes, then {after}");
    drop(last);
}
