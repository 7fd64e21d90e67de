//! The uxfrm command.
fn main() {}
