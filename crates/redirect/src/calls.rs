//! The functions that programs call instead of the C library's.

mod address;
mod descriptor;
mod message;
mod option;
