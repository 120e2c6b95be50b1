//! The small tools: each does one thing through a mapping.

pub mod cat;
pub mod cp;
pub mod doctor;
mod source;
pub mod sum;
