//! uxfrm bench.
