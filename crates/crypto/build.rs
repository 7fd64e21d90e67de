//! Builds the ipsec-mb shim where there is x86-64 and the library; otherwise the portable backend
//! stands alone.

use std::env;
use std::path::{Path, PathBuf};

const SHIM: &str = "shim/ipsec_mb.c";
const MISSING: &str = "building without ipsec-mb: AES-GCM takes about twice, CBC with HMAC four times as long \
                       (Debian: apt install libipsec-mb-dev)";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(ipsec_mb)");
    println!("cargo:rerun-if-changed={SHIM}");
    println!("cargo:rerun-if-changed=build.rs");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if arch != "x86_64" {
        println!("cargo:warning={arch} has no ipsec-mb: using the portable crypto backend");
        return;
    }
    match library().filter(|_| shim_compiles()) {
        Some(library) => link(&library),
        None => look_again(),
    }
}

/// Says what is missing, and has cargo look again once headers were installed.
fn look_again() {
    println!("cargo:warning={MISSING}");
    for folder in ["/usr/include", "/usr/local/include"] {
        if Path::new(folder).is_dir() {
            println!("cargo:rerun-if-changed={folder}");
        }
    }
}

/// The static library if there is one: a binary that runs anywhere.
fn library() -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib64",
        "/usr/local/lib",
    ];
    ["libIPSec_MB.a", "libIPSec_MB.so"]
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| Path::new(folder).join(name)))
        .find(|path| path.exists())
}

/// Fails without the header, or with one that is too old; says so itself only when asked (`-vv`).
fn shim_compiles() -> bool {
    cc::Build::new()
        .file(SHIM)
        .opt_level(2)
        .flag_if_supported("-std=c11")
        .warnings(true)
        .cargo_warnings(false)
        .try_compile("uxfrm_ipsec_mb_shim")
        .is_ok()
}

fn link(library: &Path) {
    let kind = if library.extension().is_some_and(|extension| extension == "a") {
        "static"
    } else {
        "dylib"
    };
    println!("cargo:rerun-if-changed={}", library.display());
    if let Some(folder) = library.parent() {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-lib={kind}=IPSec_MB");
    println!("cargo:rustc-cfg=ipsec_mb");
}
