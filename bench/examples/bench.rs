//! The benches without the rest of uxfrm: `cargo run --release -p uxfrm-bench --example bench --
//! crypto [--quick] [FILE.html] [key=value,…]`.

use uxfrm_bench::BenchOptions;
use uxfrm_io::huge_pages::HugePages;

#[global_allocator]
static MEMORY: HugePages = HugePages;

fn main() -> anyhow::Result<()> {
    let mut options = BenchOptions::default();
    let mut name = "crypto".to_owned();
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--quick" => options.quick = true,
            "--stages" => options.stages = true,
            "--json" => options.json = Some("-".into()),
            _ if word.ends_with(".html") || word.ends_with(".svg") => {
                options.html = Some(word.into())
            }
            _ if word.contains('=') => options.only = word.parse()?,
            _ => name = word,
        }
    }
    uxfrm_bench::run(&name, &options, &mut std::io::stdout().lock())
}
