//! Many small blocks lie in huge pages, where the system has them. Without a harness, whose threads
//! would allocate elsewhere.

use uxfrm_io::huge_pages::HugePages;

#[global_allocator]
static MEMORY: HugePages = HugePages;

/// Whether a part of the heap asks for huge pages.
fn asks() -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs is mounted");
    let mut heap = false;
    maps.lines().any(|line| {
        let is_head = line.split(' ').next().is_some_and(|word| !word.ends_with(':'));
        if is_head {
            heap = line.ends_with("[heap]");
        }
        heap && line.starts_with("VmFlags:") && line.contains(" hg")
    })
}

fn main() {
    if !cfg!(target_env = "gnu")
        || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists()
    {
        eprintln!("not run: no glibc, or no huge pages");
        return;
    }
    let some: Vec<Box<[u8; 100]>> = (0..5_000).map(|_| Box::new([1; 100])).collect();
    assert!(!asks(), "a small heap takes no huge pages");
    let many: Vec<Box<[u8; 100]>> = (0..1_500_000).map(|_| Box::new([2; 100])).collect();
    assert!(asks(), "a large heap takes them");
    let sum = |blocks: &[Box<[u8; 100]>]| {
        blocks.iter().map(|block| usize::from(block[99])).sum::<usize>()
    };
    assert_eq!((sum(&some), sum(&many)), (5_000, 3_000_000));
    eprintln!("many small blocks lie in huge pages: ok");
}
