//! vmio for C. The functions are in [`ffi`], documented for readers of `vmio.h`, which is made from them; why they look
//! so is in docs/design/c-api.md.

mod failure;
pub mod ffi;
mod status;

pub use status::vmio_status;
