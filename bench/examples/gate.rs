//! For `scripts/bench-gate`: `gate` prints the names of the paths whose instructions are counted,
//! `gate PATH` walks one.
#![expect(clippy::print_stdout, reason = "a program")]

use uxfrm_bench::cases::esp::gate;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1) {
        Some(path) => gate::walk(&path),
        None => {
            println!("{} {}", gate::PACKETS, gate::PATHS.join(" "));
            Ok(())
        }
    }
}
