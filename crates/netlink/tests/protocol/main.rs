//! The server as its clients see it: bytes in, bytes out.

mod iproute2;
mod kernel;
mod stage;
mod total;
