//! ESP transforms on batches of packets: algorithms by the kernel's names, keys that are wiped.

mod error;
mod material;
mod transform;

pub use error::Error;
pub use material::KeyMaterial;
pub use transform::Transform;
